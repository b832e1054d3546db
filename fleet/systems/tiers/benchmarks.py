"""Questions about the documents of L-Eval and LooGLE, with the sizes that their authors print; nothing is fitted.
All questions come in random order, as no order is published. Lengths within a subset are its shortest plus a
log-normal, matched to its mean and longest document; LooGLE prints means only.
"""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, fields
from statistics import NormalDist, fmean
from typing import Any, NamedTuple

from fleet.systems.tiers.load import Question, QuestionLoad, TierLoad

_NORMAL = NormalDist()


class Subset(NamedTuple):
    documents: int
    questions: int
    mean: int  # tokens of a document
    longest: int = 0  # 0: all have the same length
    shortest: int = 0  # 0: not known


@dataclass(frozen=True, slots=True)
class Benchmark:
    subsets: tuple[Subset, ...]
    question_tokens: int = 100  # as in the generated load

    @property
    def total(self) -> int:
        """Return the number of questions of a pass."""
        return sum(one.questions for one in self.subsets)

    @property
    def longest(self) -> int:
        return max(each for one in self.subsets for each in lengths_of(one))

    def asked(self, seed: int, count: int) -> list[Question]:
        """Return questions pass after pass; each pass has a new order and new documents."""
        draw = random.Random(seed)  # noqa: S311 - traffic, not secrets
        documents, asked = sum(one.documents for one in self.subsets), list[Question]()
        while len(asked) < count:
            made = [*self._of_pass(len(asked) // self.total * documents)]
            draw.shuffle(made)
            asked += made
        return asked[:count]

    def _of_pass(self, first: int) -> Iterator[Question]:
        """Yield all questions, about documents numbered from `first` on; documents of a subset get equally many."""
        for one in self.subsets:
            lengths = lengths_of(one)
            for number in range(one.questions):
                yield Question(first + number % one.documents, lengths[number % one.documents])
            first += one.documents


def lengths_of(subset: Subset) -> list[int]:
    """Return the documents' lengths in tokens: their mean is the printed one, the longest is near the subset's
    longest, and none is below its shortest."""
    if subset.longest <= subset.mean:
        return [subset.mean] * subset.documents
    quantiles = [_NORMAL.inv_cdf((number + 0.5) / subset.documents) for number in range(subset.documents)]
    last = quantiles[-1]
    mean, longest = subset.mean - subset.shortest, subset.longest - subset.shortest
    sigma = last - math.sqrt(max(last**2 - 2 * math.log(longest / mean), 0.0))
    drawn = [math.exp(sigma * each) for each in quantiles]
    return [subset.shortest + round(mean * each / fmean(drawn)) for each in drawn]


# An, Chenxin, et al., arXiv 2307.11088: 508 documents, 2,197 questions that are scored without a judge. The lengths of
# 18 subsets were counted with Llama-3's tokenizer (llama-models 0.3.0) in the files of OpenLMLab/LEval, commit cd34b05.
# For CodeU and NarrativeQA they are 0.851 of the printed tokens, the mean ratio of the other 18. The questions of GSM
# share their 16 worked examples, which count as one document here.
LEVAL_DOCUMENTS = Benchmark(
    (
        Subset(15, 269, 3_438, 3_706, 3_169),  # TOEFL
        Subset(1, 100, 4_573),  # GSM
        Subset(15, 202, 6_061, 7_344, 2_869),  # QuALITY
        Subset(15, 172, 8_259, 16_040, 4_732),  # Coursera
        Subset(50, 150, 10_722, 13_645, 7_761),  # TopicRet
        Subset(7, 64, 14_422, 24_049, 4_896),  # SFiction
        Subset(90, 90, 26_870, 31_069),  # CodeU
        Subset(20, 136, 3_260, 6_640, 2_636),  # MultiDoc2Dial
        Subset(20, 160, 4_371, 5_803, 2_440),  # Qasper
        Subset(6, 52, 5_044, 6_626, 4_371),  # LongFQA
        Subset(20, 104, 20_332, 41_842, 6_385),  # NQ
        Subset(20, 130, 25_150, 56_018, 6_723),  # CUAD
        Subset(20, 182, 53_047, 179_170),  # NarrativeQA
        Subset(11, 11, 5_902, 16_303, 2_816),  # Multi-News
        Subset(13, 13, 6_022, 20_814, 2_586),  # GovReport
        Subset(13, 13, 6_256, 10_039, 2_626),  # BigPatent
        Subset(13, 13, 8_781, 12_182, 5_214),  # SummScreen
        Subset(20, 60, 9_863, 30_129, 4_591),  # OpenReview
        Subset(20, 156, 14_873, 30_377, 3_924),  # QMSum
        Subset(20, 120, 17_821, 19_702, 16_072),  # SPACE
    ),
    question_tokens=43,
)
# Li, Jiaqi, et al., arXiv 2311.04939: 776 documents, 6,448 questions.
LOOGLE_DOCUMENTS = Benchmark(
    (
        Subset(516, 516, 20_887),  # papers
        Subset(105, 2_410, 21_017),  # encyclopedia
        Subset(155, 3_522, 36_412),  # scripts
    )
)
BENCHMARKS = {"leval-documents": LEVAL_DOCUMENTS, "loogle-documents": LOOGLE_DOCUMENTS}


def load_of(inputs: Any) -> QuestionLoad:
    """Return the load for a page's inputs: a benchmark, or a generated load."""
    generated = TierLoad(**{field.name: getattr(inputs, field.name) for field in fields(TierLoad)})
    return load_named(inputs.benchmark, generated)


def load_named(benchmark: str, generated: TierLoad) -> QuestionLoad:
    """Return the benchmark's documents and questions, or the generated load if none is named."""
    return BENCHMARKS[benchmark] if benchmark else generated
