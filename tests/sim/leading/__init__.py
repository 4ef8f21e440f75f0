"""Several coordinators over one etcd: the daemons' own code in virtual time, and an etcd that is
linearizable and does all the rest wrong.
"""
