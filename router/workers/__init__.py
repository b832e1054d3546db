"""Workers that come and go by themselves: found in etcd, where each keeps a key under a lease.

etcd        what is registered in one etcd, looked at again and again
merge       a pool's instances with what is registered
discovery   for each pool whose fleet entries name an etcd (`kv.etcd`)
"""
