"""Workers that register themselves in etcd, each with a key under a lease.

etcd        polls the workers registered in one etcd
discovery   runs this for each pool whose fleet entries name an etcd (`kv.etcd`), and combines it with the instances
"""
