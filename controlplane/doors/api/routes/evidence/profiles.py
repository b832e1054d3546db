"""Profiles over REST: those that ship with the product, and making another one."""

from typing import Any

from django.http import HttpRequest
from ninja import Field, Router, Schema
from ninja.params.functions import Query

from controlplane.doors.api.auth import needs
from controlplane.doors.api.unread import Body
from controlplane.evidence.profiles import services as profiles
from controlplane.people.audit.services import actor_of

router = Router(tags=["fleet"])


class ProfileOut(Schema):
    name: str = Field(description="Its name in the option model_profile of the kind sim")
    model: str
    gpu: str
    tp: int
    dp: int = Field(description="Ranks that share the experts")
    ep: int = Field(description="GPUs over which whole experts are distributed; 1: each has slices")
    family: str = Field(description="dense, moe or latent")
    formats: str = Field(description="Of products, experts and KV")
    source: str
    measured: float = Field(description="Share of its time, 0 to 1, that was measured at or between its shapes")
    grid_error: float = Field(description="Mean relative error between its points; 0.01 is 1 %")
    grid_worst: float
    expected: profiles.Expected
    notes: list[str] = Field(description="Doubts")


class MadeProfileOut(ProfileOut):
    profile: str = Field(description="The profile as JSON, for the option profile of a pool")


class MakeProfileIn(Body):
    model: str = Field(max_length=200, pattern=profiles.MODEL, description="Name on a hub: openai/gpt-oss-120b")
    gpu: str = Field(max_length=40, description="Such as h200_sxm")
    tp: int = Field(1, ge=1, le=64, description="Tensor-parallel size")
    dp: int = Field(1, ge=1, le=512, description="Data-parallel ranks that share the experts")
    ep: int = Field(1, ge=1, le=4096, description="1, or tp x dp to distribute whole experts over the GPUs")
    quantization: profiles.Quantization = Field("", description="Default: as the model is published")
    kv_dtype: profiles.KvDtype = Field("", description="Default: as the model is published")
    config: dict[str, Any] | None = Field(None, description="config.json of a model that the library does not know")


@router.get("/profiles", response=list[ProfileOut], auth=needs("fleet:read"))
def get_profiles(
    request: HttpRequest,
    gpu: str = Query("", max_length=40, description="Only of this GPU"),
    model: str = Query("", max_length=200, description="Only models whose name contains this"),
) -> list[dict[str, Any]]:
    """The profiles that ship with the product"""
    return [profiles.shown(one) for one in profiles.found(gpu, model)]


@router.post("/profiles", response=MadeProfileOut, auth=needs("fleet:write"))
def make_profile(request: HttpRequest, body: MakeProfileIn) -> dict[str, Any]:
    """Make a profile from measured kernel tables: takes some seconds, changes nothing"""
    made = profiles.make(profiles.AskedProfile(**body.dict()), actor_of(request))
    return profiles.shown(made) | {"profile": profiles.text(made)}
