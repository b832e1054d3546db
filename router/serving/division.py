"""The check that two instances may share a request, one for the prompt and one for the answer."""

from router.contract.api_paths import LIMITS
from router.contract.connectors import NIXL
from router.flows import bodies
from router.request.call import Call

Division = tuple[str, bool]  # why one instance must serve alone (empty: two may), and whether tokens are generated
UNDIVIDED: Division = ("", True)  # placeholder for pools in which all instances prefill and decode
BY_GATEWAY = "a gateway sends a request to one instance"


def division(call: Call) -> Division:
    connectors = call.pool.decode_connectors
    if connectors is None:
        return UNDIVIDED
    if call.outside is not None and call.owner is None and not (call.sidecars and connectors == (NIXL,)):
        return BY_GATEWAY, call.api_path in LIMITS
    document, api_path = call.request.prompt.document, call.api_path
    reasons = (bodies.unsuited(document, api_path, connector) for connector in connectors)
    return next((why for why in reasons if why), ""), api_path in LIMITS
