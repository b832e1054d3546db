"""Django's settings. Everything that differs between machines comes from the environment (docs/settings.md)."""

import secrets
from pathlib import Path
from urllib.parse import quote

from controlplane.base.process import embed_origins, env, logs, oidc_settings, private_files, span_settings
from router.contract import installation

BASE_DIR = installation.BASE
DATA_DIR = Path(env.text("WEIR_DATA_DIR", str(installation.DATA))).resolve()
private_files.guard()


def _secret_key() -> str:
    """Return the given key, or one that the first start writes to the data folder (mode 0600)."""
    given = env.text("WEIR_SECRET_KEY")
    if given:
        return given
    path = DATA_DIR / "secret_key"
    try:
        if not path.exists():
            DATA_DIR.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.touch(mode=0o600)
            path.write_text(secrets.token_urlsafe(50))
        return path.read_text().strip()
    except OSError as error:
        raise env.BadSetting(f"WEIR_DATA_DIR={DATA_DIR}: {error.strerror}; name a folder that can be written") from None


SECRET_KEY = _secret_key()
DEBUG = False
ALLOWED_HOSTS = env.words("WEIR_ALLOWED_HOSTS", ("127.0.0.1", "localhost", "[::1]"))
# Behind TLS, the origin differs from the host that Django sees, so every allowed host may post to itself.
CSRF_TRUSTED_ORIGINS = [f"https://{host}" for host in ALLOWED_HOSTS if host != "*"]

INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django.contrib.humanize",
    "channels",
    "csp",
    "django_htmx",
    "fleet",
    "controlplane",
    "controlplane.people.accounts",
    "controlplane.people.audit",
    "controlplane.doors.jobs",
    "controlplane.base.spans",
    "controlplane.base.schedule",
    "controlplane.traffic.keys",
    "controlplane.traffic.use",
    "controlplane.traffic.batches",
    "controlplane.people.notices",
    "controlplane.traffic.policies",
    "controlplane.traffic.deliveries",
    "controlplane.traffic.aliases",
    "controlplane.evidence.traces",
    "controlplane.evidence.experiments",
    "controlplane.evidence.previews",
    "controlplane.evidence.tuning",
    "controlplane.evidence.planning",
    "controlplane.pages.receipts",
    "controlplane.live.dashboard",
    "controlplane.pages.shares",
    "controlplane.pages.fleet_ops",
    "controlplane.pages.fleet_pages",
    "controlplane.pages.delivery_pages",
    "controlplane.evidence.systems",
    "controlplane.doors.api",
]

MIDDLEWARE = [
    "controlplane.doors.api.middleware.RequestId",
    "controlplane.base.spans.middleware.Spans",
    "controlplane.doors.errors.RetryAfter",
    "django.middleware.security.SecurityMiddleware",
    "controlplane.doors.web.static.StaticFiles",
    "csp.middleware.CSPMiddleware",
    "controlplane.doors.errors.NoNul",
    "controlplane.doors.errors.WrongMethod",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "controlplane.doors.errors.Asker",
    "controlplane.people.accounts.middleware.SignInRequired",
    "django.contrib.messages.middleware.MessageMiddleware",
    "controlplane.doors.errors.StaleForm",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "controlplane.doors.api.middleware.ApiProblems",
]

ROOT_URLCONF = "controlplane.urls"
ASGI_APPLICATION = "controlplane.asgi.application"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [installation.FILES / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "builtins": ["controlplane.live.dashboard.templatetags.as_seen"],
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "controlplane.live.dashboard.context.navigation",
                "controlplane.people.permissions.operator_controls",
            ],
        },
    }
]

DATABASES = {"default": env.database("DATABASE_URL", f"sqlite://{quote(str(DATA_DIR / 'weir.sqlite3'))}")}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# Socket of the index process that several routers share.
INDEX_SOCKET = Path(env.text("WEIR_INDEX_SOCKET", str(DATA_DIR / "run" / "index.sock")))
# `manage.py up` starts the bundled server here when REDIS_URL is not given.
REDIS_URL = env.text("REDIS_URL", f"unix://{quote(str(DATA_DIR / 'run' / 'redis.sock'))}")
CHANNEL_LAYERS = {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}

JOBS_APP = "controlplane.celery.app"  # the application that sends the tasks of jobs
CELERY_BROKER_URL = env.text("WEIR_CELERY_BROKER_URL", REDIS_URL.replace("unix://", "redis+socket://", 1))

NOTICE_NETWORKS = env.networks("WEIR_NOTICE_NETWORKS")  # private networks to which notices may be sent

PROMETHEUS_URL = env.http_url("WEIR_PROMETHEUS_URL")  # Prometheus for guards of deliveries; empty: none
PROMETHEUS_TOKEN = env.text("WEIR_PROMETHEUS_TOKEN")

# The node on which this process runs: the address at which routers reach its engines, and the engines' ports.
NODE_ADDRESS = env.text("WEIR_NODE_ADDRESS", "127.0.0.1")
NODE_LABELS = env.pairs("WEIR_NODE_LABELS")
ENGINE_PORTS = env.span("WEIR_ENGINE_PORTS", (18100, 18999))
ENGINE_USER = env.text("WEIR_ENGINE_USER")  # OS user of engines (fleet/node/engine_user.py); empty: Weir's own
# What a fleet document may name (fleet/spec/allow_lists.py).
ALLOWED_PROGRAMS = env.allowed("WEIR_ALLOWED_PROGRAMS")
ALLOWED_FOLDERS = env.folders("WEIR_ALLOWED_FOLDERS")
ALLOWED_VARIABLES = env.allowed("WEIR_ALLOWED_VARIABLES")
ALLOWED_ARGUMENTS = env.allowed("WEIR_ALLOWED_ARGUMENTS")
# A node that is a namespace of a Kubernetes cluster; empty: the node is this host.
KUBERNETES_NAMESPACE = env.text("WEIR_KUBERNETES_NAMESPACE")
KUBERNETES_CONTEXT = env.text("WEIR_KUBERNETES_CONTEXT")
KUBERNETES_PODS = env.text("WEIR_KUBERNETES_PODS")

PASSWORD_HASHERS = [
    "django.contrib.auth.hashers.Argon2PasswordHasher",
    "django.contrib.auth.hashers.PBKDF2PasswordHasher",
]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 10}},
    {"NAME": "controlplane.people.accounts.passwords.NoBlanks", "OPTIONS": {"min_length": 10}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
    {"NAME": "django.contrib.auth.password_validation.NumericPasswordValidator"},
]
BUDGET_TIME_ZONE = env.time_zone("WEIR_BUDGET_TIME_ZONE")  # time zone for the days, weeks and months of budgets
SPANS = span_settings.read()  # None: spans are off
OIDC = oidc_settings.read()  # sign-in through the company's identity provider; None: passwords only
LOCAL_SIGN_IN = env.flag("WEIR_LOCAL_SIGN_IN", True)
SESSION_ENGINE = "controlplane.people.accounts.sessions"
LOGIN_URL = "/login"
LOGIN_REDIRECT_URL = "/live"
LOGOUT_REDIRECT_URL = "/login"
CSRF_FAILURE_VIEW = "controlplane.doors.errors.csrf_failed"
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
CSRF_COOKIE_SAMESITE = "Lax"
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = env.flag("WEIR_SECURE_COOKIES")
# Sent only over HTTPS. The header covers this host only, so that others in its domain are not affected.
SECURE_HSTS_SECONDS = env.seconds("WEIR_HSTS_SECONDS", 2_592_000)
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"
EMBED_ORIGINS = embed_origins.read()  # origins whose pages may frame a shared wall

CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": ["'self'"],
        "script-src": ["'self'"],
        "style-src": ["'self'"],
        "img-src": ["'self'", "data:"],
        "connect-src": ["'self'"],
        "form-action": ["'self'"],
        "frame-src": ["'none'"],
        "frame-ancestors": ["'none'"],
        "base-uri": ["'none'"],
        "object-src": ["'none'"],
    }
}

STATIC_URL = "/static/"
STATIC_ROOT = BASE_DIR / "static-root"
STATICFILES_DIRS = [installation.FILES / "static"]
STATICFILES_FINDERS = [
    "django.contrib.staticfiles.finders.FileSystemFinder",
    "django.contrib.staticfiles.finders.AppDirectoriesFinder",
    "controlplane.doors.web.vendor_files.VendorFinder",
]
# Files are served from their source folders, without collectstatic; browsers revalidate their copies.
SERVESTATIC_USE_FINDERS = True
SERVESTATIC_AUTOREFRESH = True
SERVESTATIC_USE_STATIC_ROOT = False
SERVESTATIC_MAX_AGE = 0
SERVESTATIC_ALLOW_ALL_ORIGINS = False

LANGUAGE_CODE = "en-gb"
TIME_ZONE = "UTC"
USE_TZ = True
USE_THOUSAND_SEPARATOR = True

LOG_LEVEL = env.choice("WEIR_LOG_LEVEL", ("INFO", "DEBUG", "WARNING", "ERROR"))
LOGGING = logs.config(LOG_LEVEL, env.choice("WEIR_LOG_FORMAT", ("console", "json")))
