"""The scheduler of one attention-data-parallel rank: who computes what in the next iteration.

*mixed* is vLLM V1's: every decoding sequence has its token, what is left of the tokens goes to prompts, in chunks.
*prefill_first* is SGLang's: prompts alone as long as one can be taken in, decoding sequences otherwise. A sequence is
taken in when the blocks of all that it computes first are free, or with *reserves* those of its longest answer too,
which TensorRT-LLM calls guaranteed no evict. When a decoding sequence finds no block, the one taken in last goes back
to the head of the queue, and computes its cache again, unless tiers below the card have kept it. Prompts may wait for
others, while sequences decode, so that iterations with prompts are fewer: TensorRT-LLM's batch waiting
(`batch_wait_timeout_iters`, `batch_wait_max_tokens_ratio`), which counts tokens that decode as well.

Decoding sequences are counted, not walked through: how many, how many tokens they hold, whose last token is when, and
how many of them need a block at which iteration. So an iteration costs the same for one sequence and for a thousand.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from heapq import heappop, heappush
from itertools import islice

from simulator.forecast.serving.cache_pool import CachePool
from simulator.forecast.serving.lower_tiers import LowerTiers
from simulator.forecast.serving.plan import Limits, Plan
from simulator.forecast.serving.prefix_cache import PrefixCache
from simulator.forecast.serving.request_traces import HASH_TOKENS
from simulator.forecast.serving.sequence import Sequence


class Rank:
    """Queues, batch and cache of one rank."""

    def __init__(
        self,
        limits: Limits,
        pool: CachePool,
        prefixes: PrefixCache | None = None,
        tiers: LowerTiers | None = None,
    ) -> None:
        self._limits, self.pool, self._prefixes, self.tiers = limits, pool, prefixes, tiers
        self.waiting: deque[Sequence] = deque()
        self._filling: dict[Sequence, None] = {}
        self._decoding: dict[Sequence, None] = {}
        self._tick = 0
        """Iterations in which it decoded."""
        self._base_sum = 0
        self._phases: Counter[int] = Counter()
        """How many decoding sequences need a new block at an iteration of each number, modulo tokens of a block."""
        self._ends: list[tuple[int, int, Sequence]] = []
        self._serial = 0
        self._waited = 0
        """Iterations that prompts have waited for others."""
        self.preemptions = 0
        self.refusals = 0
        """Iterations in which the first of the queue found no room."""
        self.found_tokens = 0
        """Tokens of prompts that were in the cache."""

    @property
    def decoding(self) -> int:
        """Sequences that decode."""
        return len(self._decoding)

    @property
    def running(self) -> int:
        """Sequences that were taken in."""
        return len(self._decoding) + len(self._filling)

    @property
    def under_way(self) -> int:
        """All that it has to do with."""
        return self.running + len(self.waiting)

    @property
    def contexts(self) -> int:
        """Tokens that all decoding sequences attend to in the next iteration, the new ones among them."""
        return self._base_sum + len(self._decoding) * (self._tick + 1)

    def plan(self) -> Plan:
        """The next iteration; takes in what has room, and sends back what has none."""
        limits = self._limits
        plan = Plan(decodes=bool(self._decoding))
        budget = limits.max_batch_tokens
        if plan.decodes and limits.mixed:
            self._secure()
            budget -= len(self._decoding)
        plan.waits = self._wait_for_others(budget)
        if not plan.waits:
            self._fill(plan, budget)
        if plan.chunks and not limits.mixed:
            plan.decodes = False
        elif not limits.mixed and self._decoding:
            self._secure()
        plan.decodes = plan.decodes and bool(self._decoding)
        return plan

    def _fill(self, plan: Plan, budget: int) -> None:
        for sequence in self._filling:
            budget = self._chunk(plan, sequence, budget)
        while budget > 0 and self.waiting and self.running < self._limits.max_sequences:
            sequence = self.waiting[0]
            if not self._limits.chunked and self._to_compute(sequence) > budget:
                break
            if not self._take_in(sequence, plan):
                plan.refused = True
                break
            self.waiting.popleft()
            if sequence.left:
                self._filling[sequence] = None
                budget = self._chunk(plan, sequence, budget)
            else:
                self._begin_decoding(sequence)
                plan.decodes = True
                budget -= 1

    def _wait_for_others(self, budget: int) -> bool:
        """Whether prompts that an iteration with room for *budget* tokens could compute wait for more of them."""
        limits = self._limits
        ready = self._ready(budget) if limits.wait_iterations and self._decoding else 0
        if not ready:
            return False
        enough = ready + len(self._decoding) >= limits.wait_share * limits.max_batch_tokens
        if enough or self._waited >= limits.wait_iterations:
            self._waited = 0
            return False
        return True

    def _ready(self, budget: int) -> int:
        """Tokens of the prompts that would be computed in an iteration with room for *budget*, did they not wait:
        those for whose sequences there is neither a place in the batch nor room for caches are not ready.
        """
        ready, places = sum(sequence.left for sequence in self._filling), self._limits.max_sequences - self.running
        free_bytes = self.pool.capacity_bytes - self.pool.used_bytes - self._growth(1) * self.pool.block_bytes
        for sequence in islice(self.waiting, max(0, places)):
            more = self._to_compute(sequence)
            free_bytes -= self.pool.need_bytes(self._new_blocks(sequence, self._found(sequence)), sequence.longest)
            if free_bytes < 0 or ready >= budget or (not self._limits.chunked and ready + more > budget):
                break
            ready += more
        return ready

    def _to_compute(self, sequence: Sequence) -> int:
        """Tokens of *sequence*, which waits, that it computes before it can decode."""
        if sequence.ready:
            return 1
        known = max(len(self._found(sequence)) * HASH_TOKENS, sequence.request.cached_tokens)
        return sequence.target - min(known, sequence.target - 1)

    @staticmethod
    def _chunk(plan: Plan, sequence: Sequence, budget: int) -> int:
        tokens = min(sequence.left, budget)
        if tokens > 0:
            plan.chunks.append((sequence, tokens))
        return budget - tokens

    def _take_in(self, sequence: Sequence, plan: Plan) -> bool:
        """Set aside what *sequence* needs to begin, if there is room beside the next tokens of those that decode; what
        lower tiers have of it comes up beside *plan*.
        """
        found = self._found(sequence)
        if not self.pool.has_room(self._new_blocks(sequence, found) + self._growth(1), sequence.longest):
            return False
        if self._prefixes:
            self._prefixes.hold(found)
        self.pool.take(self._first_blocks(sequence) - len(found) * self._hash_blocks, sequence.longest)
        sequence.hashes = found
        sequence.cached = sequence.request.prompt_tokens
        if not sequence.ready:
            kept = self._returned(sequence, plan)
            below = kept or self._brought_up(sequence, len(found), plan)
            known = max(len(found) * HASH_TOKENS, sequence.request.cached_tokens, below)
            sequence.cached = min(known, sequence.target - 1)
            self.found_tokens += 0 if sequence.preemptions else sequence.cached
        sequence.left = 0 if sequence.ready else sequence.target - sequence.cached
        self._make_room()
        return True

    def _returned(self, sequence: Sequence, plan: Plan) -> int:
        """Tokens of *sequence*, which was sent back, that lower tiers have kept, and now bring up."""
        if self.tiers is None or not self.tiers.holds(sequence):
            return 0
        plan.loaded_s += self.tiers.take(sequence)
        return sequence.away

    def _brought_up(self, sequence: Sequence, found: int, plan: Plan) -> int:
        """Tokens that *sequence* begins with, once lower tiers have brought up what follows the *found* hashes."""
        if self.tiers is None or self._prefixes is None:
            return 0
        whole = sequence.request.prompt_tokens // HASH_TOKENS
        below = self._prefixes.below(sequence.request.hash_ids[found:whole])
        plan.loaded_s += sum(self.tiers.take(one) for one in below)
        return (found + len(below)) * HASH_TOKENS

    def _new_blocks(self, sequence: Sequence, found: tuple[int, ...]) -> int:
        """That must be free for *sequence*, of which *found* is in the cache: those that nobody holds now are held."""
        own = self._first_blocks(sequence) - len(found) * self._hash_blocks
        idle = self._prefixes.idle_among(found) * self._hash_blocks if self._prefixes else 0
        first_token = sequence.ready and sequence.request.prompt_tokens % self.pool.block_tokens == 0
        return own + idle + first_token

    def _first_blocks(self, sequence: Sequence) -> int:
        if self._limits.reserves:
            return self.pool.blocks(sequence.longest)
        return self.pool.blocks(sequence.request.prompt_tokens if sequence.ready else sequence.target)

    def _found(self, sequence: Sequence) -> tuple[int, ...]:
        if self._prefixes is None:
            return ()
        whole = sequence.request.prompt_tokens // HASH_TOKENS
        return self._prefixes.found(sequence.request.hash_ids[:whole])

    @property
    def _hash_blocks(self) -> int:
        return self._prefixes.hash_blocks if self._prefixes else 0

    def _make_room(self) -> None:
        if self._prefixes:
            self._prefixes.make_room()

    def _begin_decoding(self, sequence: Sequence) -> None:
        # The last token of the answer is not in the cache yet: it is what the next iteration computes.
        sequence.base = sequence.target - 1 - self._tick
        sequence.ends = self._tick + sequence.request.output_tokens - sequence.generated
        self._decoding[sequence] = None
        self._base_sum += sequence.base
        self._phases[-sequence.base % self.pool.block_tokens] += 1
        self._serial += 1
        heappush(self._ends, (sequence.ends, self._serial, sequence))

    def _end_decoding(self, sequence: Sequence) -> None:
        """Out of the batch; what it holds stays held."""
        del self._decoding[sequence]
        sequence.cached = sequence.base + self._tick
        self._base_sum -= sequence.base
        self._phases[-sequence.base % self.pool.block_tokens] -= 1

    def _growth(self, iterations: int) -> int:
        """Blocks that decoding takes in so many iterations; none where they were set aside."""
        if self._limits.reserves:
            return 0
        size = self.pool.block_tokens
        whole, rest = divmod(iterations, size)
        return whole * len(self._decoding) + sum(self._phases[(self._tick + i) % size] for i in range(rest))

    def _secure(self) -> None:
        """Send back what was taken in last until each decoding sequence has a block for its token."""
        while self._decoding and self._growth(1) > self.pool.free_blocks and self.running > 1:
            self._send_back(next(reversed(self._filling or self._decoding)))

    def _send_back(self, sequence: Sequence) -> None:
        if sequence in self._filling:
            del self._filling[sequence]
        else:
            self._end_decoding(sequence)
            sequence.generated = sequence.request.output_tokens - (sequence.ends - self._tick)
        self._keep(sequence)
        self._let_go(sequence, self._held_tokens(sequence))
        sequence.preemptions += 1
        self.preemptions += 1
        self.waiting.appendleft(sequence)

    def _keep(self, sequence: Sequence) -> None:
        """Have lower tiers keep the cache of *sequence*, which is sent back."""
        if self.tiers is None or not sequence.cached:
            return
        size = self.pool.need_bytes(self.pool.blocks(sequence.cached), sequence.longest)
        self.tiers.put(sequence, size)
        sequence.away = sequence.cached

    def _held_tokens(self, sequence: Sequence) -> int:
        """Tokens whose blocks it holds."""
        if self._limits.reserves:
            return sequence.longest
        return sequence.target if sequence.left else sequence.cached

    def _let_go(self, sequence: Sequence, tokens: int) -> None:
        blocks = self.pool.blocks(tokens) - len(sequence.hashes) * self._hash_blocks
        self.pool.release(blocks, sequence.longest)
        if self._prefixes:
            self._prefixes.let_go(sequence.hashes)
        sequence.hashes = ()

    def stretch(self, plan: Plan, longest: int) -> int:
        """Iterations, up to *longest*, that are all like the next one, *plan*: nobody ends before the last, or has
        waited long enough for other prompts, and all blocks that they need are free.
        """
        if plan.waits:
            longest = min(longest, self._limits.wait_iterations - self._waited)
        while self._ends and (self._ends[0][0] != self._ends[0][2].ends or self._ends[0][2] not in self._decoding):
            heappop(self._ends)
        count = min(longest, self._ends[0][0] - self._tick) if self._ends else longest
        free = self.pool.free_blocks
        while count > 1 and self._growth(count) > free:
            count //= 2
        return max(1, count)

    def used_bytes_after(self, plan: Plan, iterations: int) -> int:
        """Of caches, once *iterations* iterations of *plan* are over and before those that end give theirs back."""
        grown = self._growth(iterations) if plan.decodes else 0
        return self.pool.used_bytes + grown * self.pool.block_bytes

    def go(self, plan: Plan, iterations: int, now_ns: int) -> list[Sequence]:
        """*iterations* iterations of *plan* are over: the sequences that ended, their caches let go."""
        ended: list[Sequence] = []
        self.refusals += iterations * plan.refused
        self._waited += iterations * plan.waits
        if plan.decodes:
            self.pool.take(self._growth(iterations))
            self._tick += iterations
            ended = list(self._ended())
        for sequence, tokens in plan.chunks:
            sequence.left -= tokens
            sequence.cached += tokens
            if sequence.left == 0:
                self._prefilled(sequence, now_ns)
                if sequence.generated == sequence.request.output_tokens:
                    ended.append(sequence)
                else:
                    self._begin_decoding(sequence)
        self._make_room()
        for sequence in ended:
            sequence.end_ns = now_ns
            self._let_go(sequence, self._held_tokens(sequence))
        return ended

    def _prefilled(self, sequence: Sequence, now_ns: int) -> None:
        """The end of a prompt makes a token of the answer."""
        del self._filling[sequence]
        if self._prefixes and not sequence.preemptions:
            whole = sequence.request.prompt_tokens // HASH_TOKENS
            new = sequence.request.hash_ids[len(sequence.hashes) : whole]
            sequence.hashes += self._prefixes.add(new)
        sequence.generated += 1
        if sequence.first_ns < 0:
            sequence.first_ns = now_ns

    def _ended(self) -> Iterable[Sequence]:
        while self._ends and self._ends[0][0] <= self._tick:
            ends, _, sequence = heappop(self._ends)
            if sequence in self._decoding and sequence.ends == ends:
                self._end_decoding(sequence)
                sequence.generated = sequence.request.output_tokens
                yield sequence
