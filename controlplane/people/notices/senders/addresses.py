"""Restricts notices to public addresses and the networks of WEIR_NOTICE_NETWORKS."""

from django.conf import settings

from router.contract.net.addresses import Reach


def reach() -> Reach:
    return Reach(networks=tuple(settings.NOTICE_NETWORKS), setting="WEIR_NOTICE_NETWORKS")
