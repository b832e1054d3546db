"""The desired fleet (Fleet, Pool), the observed one (Node, Instance, Port) and the history of both.

Rows change only on an event; figures that change every second are in Redis (docs/redis.md).
"""

from typing import Any

from django.db import models
from django.db.models import Q
from django.utils import timezone

from fleet import jobs
from fleet.kinds.engine_config import EngineConfig
from fleet.kinds.listed import ListedEngine
from fleet.kinds.resources import Inventory, decode_inventory
from fleet.kinds.wire import KvWire
from router.contract.net.engine_key import OPTION as ENGINE_KEY
from router.contract.net.engine_tls import OPTION as TLS
from router.contract.net.engine_tls import PLAIN, EngineTls, engine_tls
from router.contract.values.reading import read_value


class DesiredState(models.TextChoices):
    """The desired state of one instance, set by an operator."""

    RUNNING = "running"
    DRAINED = "drained"
    STOPPED = "stopped"
    ASLEEP = "asleep"  # the process stays, but its weights and KV cache leave the GPU


class State(models.TextChoices):
    """The observed state of one instance; its transitions are in fleet/plan/state.py."""

    STARTING = "starting"
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"
    UNREACHABLE = "unreachable"


class Fleet(models.Model):
    """Metadata of the fleet document, in a single row."""

    name = models.CharField(max_length=63)
    applied_at = models.DateTimeField(default=timezone.now)
    applied_by = models.CharField(max_length=150, blank=True)
    prices = models.JSONField(default=dict)  # declared prices; fleet/systems/prices.py has the defaults

    class Meta:
        constraints = [models.CheckConstraint(condition=Q(pk=1), name="fleet_is_one_row")]

    def __str__(self) -> str:
        return self.name


class PublicationOrder(models.Model):
    """Order of the value that was last read for routers, in a single row (fleet/redis/ordered_write.py)."""

    last = models.BigIntegerField(default=0)

    class Meta:
        constraints = [models.CheckConstraint(condition=Q(pk=1), name="publication_order_is_one_row")]

    def __str__(self) -> str:
        return str(self.last)


class Node(models.Model):
    """A host or a Kubernetes namespace; its Celery worker consumes the queue `node.<name>`."""

    name = models.CharField(max_length=63, unique=True)
    hostname = models.CharField(max_length=255, blank=True)
    address = models.CharField(max_length=255, default="127.0.0.1")  # address of its instances, for routers
    last_seen = models.DateTimeField(null=True, blank=True)  # latest heartbeat, every few seconds
    inventory = models.JSONField(default=dict)  # reported by its worker (fleet/kinds/resources.py)
    labels = models.JSONField(default=dict)  # options of its worker, which placements match
    cordoned = models.BooleanField(default=False)  # True: no new instances start
    draining = models.BooleanField(default=False)  # True: running instances move elsewhere
    because = models.CharField(max_length=450, blank=True)  # actor and reason of the cordon or drain
    missed_at = models.DateTimeField(null=True, blank=True)  # last heartbeat before its silence; empty: it reports

    def __str__(self) -> str:
        return self.name

    @property
    def resources(self) -> Inventory:
        return decode_inventory(self.inventory)


class Pool(models.Model):
    """Interchangeable instances that serve one model."""

    name = models.CharField(max_length=63, unique=True)
    model = models.CharField(max_length=200)
    policy = models.CharField(max_length=63, default="default")
    kind = models.CharField(max_length=40)
    replicas = models.PositiveIntegerField(default=1)
    engine = models.JSONField(default=dict)  # declared options; the kind has defaults for the rest
    node = models.CharField(max_length=63, default="local", blank=True)  # the only node; empty: `placement` decides
    update = models.JSONField(default=dict)  # as in the document (fleet/spec/sections.py), like the next three
    placement = models.JSONField(default=dict)
    schedule = models.JSONField(default=dict)
    autoscale = models.JSONField(default=dict)
    slo = models.JSONField(default=dict)
    access = models.JSONField(default=dict, db_default=models.Value({}, models.JSONField()))
    mode = models.CharField(max_length=10, default="serve", db_default="serve")  # observe: no requests from routers
    scaled = models.PositiveIntegerField(null=True, blank=True)  # replicas set by the autoscaler
    scaled_prefills = models.PositiveIntegerField(null=True, blank=True)  # the same for prefill instances
    halted = models.TextField(blank=True)  # why the change of configuration is halted
    ephemeral_owner = models.CharField(max_length=100, blank=True)  # "run 7"; empty for a pool of the fleet document
    removed = models.BooleanField(default=False)  # deleted once its instances are drained and stopped
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["name"]
        indexes = [
            # Condition of fleet.selectors.pools() and of the clean-up of ephemeral pools.
            models.Index(fields=["ephemeral_owner", "created_at"], name="pool_by_owner"),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def born(self) -> str:
        """Return a text that distinguishes the pool from one of the same name in an earlier database, where epochs
        start over."""
        return str(int(self.created_at.timestamp() * 1000))


class PoolVersion(models.Model):
    """A configuration of a pool; a rollback is a new version with the content of an older one."""

    pool = models.ForeignKey(Pool, on_delete=models.CASCADE, related_name="versions")
    number = models.PositiveIntegerField()
    config = models.JSONField()  # {model, kind, engine}
    config_hash = models.CharField(max_length=16)
    at = models.DateTimeField(default=timezone.now)
    actor = models.CharField(max_length=150, blank=True)
    reason = models.TextField(blank=True)
    proven_at = models.DateTimeField(null=True, blank=True)  # first time at which every instance was ready
    failed = models.TextField(blank=True)  # why it was halted or rolled back

    class Meta:
        ordering = ["-number"]
        constraints = [models.UniqueConstraint(fields=["pool", "number"], name="pool_version_once")]

    def __str__(self) -> str:
        return f"{self.pool} v{self.number}"

    @property
    def content(self) -> EngineConfig:
        return read_value(self.config, EngineConfig)


class InstanceSource(models.Model):
    """The engines listed by a pool's source (fleet/discovery); they run in another system and may change at any
    time."""

    pool = models.OneToOneField(Pool, on_delete=models.CASCADE, related_name="source")
    engines = models.JSONField(default=list)  # each a fleet.kinds.listed.ListedEngine, from the latest answer
    refused = models.JSONField(default=list)  # listed addresses that Weir must not connect to, with the reason
    changed_at = models.DateTimeField(default=timezone.now)
    away_since = models.DateTimeField(null=True, blank=True)  # time of the latest answer; empty: the source answers
    trouble = models.TextField(blank=True)  # why the source does not answer

    def __str__(self) -> str:
        return f"source of {self.pool}"

    @property
    def listed(self) -> dict[str, ListedEngine]:
        """Return the listed engines by key."""
        return {one.key: one for one in read_value(self.engines, list[ListedEngine])}


class Instance(models.Model):
    """One engine with an HTTP endpoint. Pid, start time and boot identify its process; its name identifies a Pod."""

    pool = models.ForeignKey(Pool, on_delete=models.CASCADE, related_name="instances")
    name = models.CharField(max_length=80, unique=True)  # "demo-0"
    ordinal = models.PositiveIntegerField()
    desired = models.CharField(max_length=10, choices=DesiredState, default=DesiredState.RUNNING)
    state = models.CharField(max_length=12, choices=State, default=State.STOPPED)
    reason = models.TextField(blank=True)  # reason for the state
    since = models.DateTimeField(default=timezone.now)  # when the state began
    epoch = models.PositiveIntegerField(default=0)  # +1 at each start; orders with an older epoch are void
    node = models.CharField(max_length=63, default="local", blank=True)  # node of the latest start
    gpus = models.JSONField(default=list)  # numbers of the GPUs assigned to it
    pid = models.PositiveIntegerField(null=True, blank=True)
    pid_started = models.FloatField(null=True, blank=True)  # start time of the process, seconds after boot
    boot_id = models.CharField(max_length=36, blank=True)
    pod = models.CharField(max_length=253, blank=True)  # name of the Pod; on Kubernetes, instead of a process
    url = models.CharField(max_length=255, blank=True)
    command = models.JSONField(default=list)  # arguments of the latest start
    wire = models.JSONField(default=dict)  # facts for the routers about this start (Kind.wire)
    # Entry in the source of its pool; empty without a source.
    listed = models.JSONField(default=dict, db_default=models.Value({}, models.JSONField()))
    config = models.JSONField(default=dict)  # {model, kind, engine} of the latest start
    config_hash = models.CharField(max_length=16, blank=True)  # hash of `config`
    retired = models.CharField(max_length=300, blank=True)  # why it is being removed
    asleep = models.PositiveSmallIntegerField(null=True, blank=True)  # sleep level once it may be asleep; empty: awake
    sleep_level = models.PositiveSmallIntegerField(default=1)  # level of the next sleep
    # When a sleep or wake order was given that has no outcome yet
    ordered_at = models.DateTimeField(null=True, blank=True)
    restart_asked = models.CharField(max_length=300, blank=True)  # actor and reason; cleared by the next start
    restarts = models.PositiveIntegerField(default=0)  # starts after the first
    failures = models.PositiveIntegerField(default=0)  # failures in a row; a stable minute resets them
    next_start_at = models.DateTimeField(null=True, blank=True)  # end of the back-off
    stop_deadline = models.DateTimeField(null=True, blank=True)  # time of the SIGKILL
    started_at = models.DateTimeField(null=True, blank=True)
    ready_at = models.DateTimeField(null=True, blank=True)  # time when it was first ready in this epoch
    last_probe_at = models.DateTimeField(null=True, blank=True)  # last answer before the latest change of state
    kv_blocks = models.PositiveIntegerField(null=True, blank=True)
    block_size = models.PositiveIntegerField(null=True, blank=True)  # tokens per block

    class Meta:
        ordering = ["pool", "ordinal"]
        constraints = [
            models.UniqueConstraint(fields=["pool", "ordinal"], name="one_instance_per_ordinal"),
            models.CheckConstraint(condition=Q(desired__in=DesiredState.values), name="instance_desired_known"),
            models.CheckConstraint(condition=Q(state__in=State.values), name="instance_state_known"),
        ]
        indexes = [
            # fleet.scrape reads every instance of this node that has a process.
            models.Index(fields=["node", "state"], name="instance_by_node"),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def routable(self) -> bool:
        return self.state == State.READY

    @property
    def facts(self) -> KvWire:
        return read_value(self.wire, KvWire)

    @property
    def engine_key(self) -> str:
        """Return the reference of the key that the instance's engine requires; empty if none. For an engine that Weir
        did not start, it comes from the pool's current options.
        """
        given = self.started_from
        kind = given.known_kind
        options = given.engine if kind is None or kind.launched else self.pool.engine
        return str(options.get(ENGINE_KEY) or "")

    @property
    def tls(self) -> EngineTls:
        """Return the certificates for connecting to the engine; only engines that Weir did not start have any."""
        given = self.pool.engine.get(TLS) if self.pool.kind == "external" else None
        return engine_tls(given) if given else PLAIN

    @property
    def listing(self) -> ListedEngine | None:
        return read_value(self.listed, ListedEngine) if self.listed else None

    @property
    def started_from(self) -> EngineConfig:
        """Return the configuration of the instance's latest start, or before the first start that of its pool."""
        if not self.config:
            return EngineConfig(self.pool.model, self.pool.kind, self.pool.engine)
        return read_value(self.config, EngineConfig)


Changes = dict[str, Any]  # columns of an instance's row and their new values
NO_PROCESS: Changes = {"pid": None, "pid_started": None, "pod": "", "stop_deadline": None}


class Port(models.Model):
    """A port of a node, held by an instance from its first start until its deletion."""

    node = models.CharField(max_length=63)
    number = models.PositiveIntegerField()
    use = models.CharField(max_length=20)  # name given by the kind: "http", "events", "replay"
    instance = models.ForeignKey(Instance, on_delete=models.CASCADE, related_name="ports")

    class Meta:
        constraints = [
            # If two workers allocate at the same time, the second insert fails and the worker tries another port.
            models.UniqueConstraint(fields=["node", "number"], name="port_held_once"),
            models.UniqueConstraint(fields=["instance", "use"], name="one_port_per_use"),
        ]

    def __str__(self) -> str:
        return f"{self.node}:{self.number}"


class AdapterHome(models.Model):
    """A LoRA adapter on an instance, as desired and as observed; a row of an earlier epoch is void."""

    class State(models.TextChoices):
        LOADING = "loading"
        LOADED = "loaded"  # the engine lists it
        FAILED = "failed"  # loading failed twice, and another home is chosen
        LEAVING = "leaving"

    instance = models.ForeignKey(Instance, on_delete=models.CASCADE, related_name="adapters")
    epoch = models.PositiveIntegerField()
    name = models.CharField(max_length=100)
    source = models.CharField(max_length=1000, blank=True)  # path of the adapter; empty: loaded by someone else
    state = models.CharField(max_length=8, choices=State, default=State.LOADING)
    failures = models.PositiveSmallIntegerField(default=0)
    text = models.TextField(blank=True)  # engine's error text
    since = models.DateTimeField(default=timezone.now)  # when the state began

    class Meta:
        ordering = ["name", "instance"]
        constraints = [models.UniqueConstraint(fields=["instance", "name"], name="adapter_once_per_instance")]

    def __str__(self) -> str:
        return f"{self.name} on {self.instance}: {self.state}"

    @property
    def held(self) -> bool:
        """Return whether requests for the adapter may go to this instance."""
        return self.state == self.State.LOADED


class AdapterDemand(models.Model):
    """Homes of an adapter beyond its replicas, added while all of its homes were full."""

    pool = models.ForeignKey(Pool, on_delete=models.CASCADE, related_name="adapter_demands")
    name = models.CharField(max_length=100)
    extra = models.PositiveSmallIntegerField(default=0)
    full_since = models.DateTimeField(null=True, blank=True)  # since when all homes have been full; empty: not all are
    calm_since = models.DateTimeField(null=True, blank=True)  # since when no home has been full; only with extra homes

    class Meta:
        constraints = [models.UniqueConstraint(fields=["pool", "name"], name="adapter_demand_once_per_pool")]

    def __str__(self) -> str:
        return f"{self.name} in {self.pool}: {self.extra} extra"


class InstanceEvent(models.Model):
    """An event of an instance, a pool or a node, which it names, so that it outlives their rows."""

    instance = models.CharField(max_length=80, blank=True)  # empty: event of a pool or node
    pool = models.CharField(max_length=63, blank=True)  # empty: event of a node
    node = models.CharField(max_length=63, blank=True)  # only for events of a node
    epoch = models.PositiveIntegerField(default=0)
    at = models.DateTimeField(default=timezone.now)
    kind = models.CharField(max_length=20)  # a state, or a request such as "drain"
    text = models.TextField(blank=True)
    actor = models.CharField(max_length=150, blank=True)
    reason = models.TextField(blank=True)
    seconds = models.FloatField(null=True, blank=True)  # duration of the state or change that it ends

    class Meta:
        ordering = ["-at", "-pk"]
        indexes = [
            # The instance page reads these rows; a new instance continues the epochs of its name.
            models.Index(fields=["instance", "-at"], name="event_by_instance"),
            # The fleet page reads these.
            models.Index(fields=["pool", "-at"], name="event_by_pool"),
            # The node pages read these.
            models.Index(fields=["node", "-at"], name="event_by_node"),
        ]

    def __str__(self) -> str:
        return f"{self.instance or self.pool or self.node} {self.kind}"


class Calibration(jobs.Job):
    """Measurements of a running engine (fleet/calibration). They refer to the engine by name, so that they outlive its
    row. The twin computes with the newest finished calibration; older ones remain as history.
    """

    TASK, TURN_FIELDS = "fleet.calibrate", ("node",)
    AT_ONCE = 4  # with previews and tunings fewer than a control worker's threads, so that orders find a free one

    instance = models.CharField(max_length=80)
    pool = models.CharField(max_length=63)
    node = models.CharField(max_length=63, blank=True)
    kind = models.CharField(max_length=40)
    model = models.CharField(max_length=200)
    config_hash = models.CharField(max_length=16)  # hash of the engine's configuration, as Instance.config_hash
    seconds = models.FloatField()  # longest sweep
    anyway = models.BooleanField(default=False)  # True: measure even while other requests run on the instance
    source = models.CharField(max_length=10, default="sweep")  # source of the measured times: sweep, traffic
    step = models.CharField(max_length=80, blank=True)  # current round of the sweep
    asked_at = models.DateTimeField(default=timezone.now)
    constants = models.JSONField(default=dict)  # constants of fleet.engine.law.Law, api_s and api_s_per_token
    limits = models.JSONField(default=dict)  # kv_blocks, block_size, max_num_seqs, max_num_batched_tokens, window
    points = models.JSONField(default=list)  # fleet.calibration.fit.CalibrationPoint each
    ttft_error = models.FloatField(null=True, blank=True)  # mean of |fitted / measured - 1|
    tpot_error = models.FloatField(null=True, blank=True)
    held_out = models.JSONField(default=dict)  # fleet.calibration.traffic.replayed.ReplayErrors, for a fit to traffic
    load_range = models.JSONField(default=dict)  # fleet.calibration.load_range.LoadRange, for a fit to traffic
    n = models.PositiveIntegerField(default=0)  # number of measured loads with repetitions, or of held-out requests
    notes = models.JSONField(default=list)  # caveats, as text

    class Meta:
        ordering = ["-asked_at", "-pk"]
        constraints = [
            # Two concurrent sweeps would measure each other's load.
            models.UniqueConstraint(
                fields=["instance"], condition=Q(status__in=["queued", "running"]), name="one_calibration_at_a_time"
            ),
        ]
        indexes = [
            # The page of an instance reads these.
            models.Index(fields=["instance", "-asked_at"], name="calibration_by_instance"),
            # The twin reads the newest calibration of a pool's engines.
            models.Index(fields=["pool", "-asked_at"], name="calibration_by_pool"),
        ]

    def __str__(self) -> str:
        return f"{self.instance} {self.status}"

    @property
    def queue(self) -> str:
        """Return the queue of the worker nearest to the engine."""
        return f"node.{self.node}" if self.node else "control"
