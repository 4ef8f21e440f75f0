// A page opened from disk may start no worker, and the theme searches in one. There, and only
// there, the worker's script runs in a hidden frame. The offline plugin would fetch such a
// script from elsewhere each time a page is read; it leaves one of this name alone.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      this.inner = this.frame.contentWindow;
      // The script answers by postMessage(message), as in a worker.
      this.inner.postMessage = (data) => {
        this.dispatchEvent(new MessageEvent("message", { data }));
      };
      this.ready = new Promise((resolve) => {
        const script = this.inner.document.createElement("script");
        script.onload = resolve;
        script.src = url;
        this.inner.document.body.append(script);
      });
    }

    postMessage(data) {
      this.ready.then(() => {
        this.inner.dispatchEvent(new MessageEvent("message", { data }));
      });
    }

    terminate() {
      this.frame.remove();
    }
  };
  window.Worker = window.IFrameWorker;
}
