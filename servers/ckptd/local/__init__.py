"""`ckptd local`: a whole cluster of one machine under one process."""
