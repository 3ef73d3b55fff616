"""Functions by which threads work together, without Python: what one hands to the others is words in memory.

    void @work(ptr job, i64 thread)              what each thread does of a job
    void @serve(ptr mail)                        what a helper does until it is dismissed
    void @lead(ptr mails, i64 count, ptr job)    do a job, with those of so many helpers that are free
    void @dismiss(ptr mails, i64 count)

    mail    [state, job, thread, whether it sleeps], then a semaphore; MAIL_BYTES each
    job     words (ALONE and so on): whole samples, which each thread takes one after the other in an arena of its own,
            then those that all threads do together

A helper looks for a job for a while, since the next call often comes at once, and then sleeps. Whoever leads does not
wait for helpers to come: what they have not begun is taken back. It waits for those that do samples of their own; where
all samples are done together, whoever is still on its way finds nothing left to do.
"""

from __future__ import annotations

from fxquant.engines.native.caller import ARGUMENTS, Caller
from fxquant.engines.native.machine import Machine

BUSY, IDLE, POSTED, STOPPED = range(4)  # states; memory is 0 before a helper has begun
MAIL_BYTES = 128
JOB, _THREAD, _SLEEPS, _SEMAPHORE = 8, 16, 24, 64  # bytes of a mail
ALONE, TOGETHER, KEPT, CONSTANTS, SLOTS, FULL, BATCH, THREADS, COUNTS = range(9)  # words of a job
NEXT, ARENAS = 16, 24  # apart from what is only read


def crew(machine: Machine) -> list[Caller]:
    """Return the functions."""
    return [_work(machine), _serve(machine), _lead(machine), _dismiss(machine)]


def _work(machine: Machine) -> Caller:
    f = Caller("work", ("ptr %job", "i64 %thread"), machine)

    def word(index: int, type_: str) -> str:
        return f.load(type_, f.at("%job", 8 * index), 8)

    def call(function: str, arena: str, *rest: str) -> None:
        types = [argument.split()[0] for argument in ARGUMENTS]
        given = zip(types, (arena, *fixed, *rest), strict=True)
        f.do(f"call void {function}({', '.join(' '.join(each) for each in given)})")

    alone, together = word(ALONE, "ptr"), word(TOGETHER, "ptr")
    fixed = [word(index, "ptr") for index in (KEPT, CONSTANTS, SLOTS)]
    full, batch, threads = (word(index, "i64") for index in (FULL, BATCH, THREADS))
    arenas, counts = f.at("%job", 8 * ARENAS), word(COUNTS, "ptr")
    f.do("br label %take")
    f.label("take")
    sample = f.value(f"atomicrmw add ptr {f.at('%job', 8 * NEXT)}, i64 1 monotonic")
    f.do(f"br i1 {f.value(f'icmp slt i64 {sample}, {full}')}, label %take.do, label %take.end")
    f.label("take.do")
    own = f.load("ptr", f.step(f.at(arenas, 8), "%thread", 8), 8)
    call(alone, own, sample, f.add(sample, 1), "1", "0", "null")
    f.do("br label %take")
    f.label("take.end")
    some = f.value(f"icmp slt i64 {full}, {batch}")
    f.when(some, lambda: call(together, f.load("ptr", arenas, 8), full, batch, threads, "%thread", counts))
    return f


def _swap(f: Caller, address: str, before: int, after: int) -> str:
    """Change a state from one to another; tell whether it was the first."""
    both = f.value(f"cmpxchg ptr {address}, i64 {before}, i64 {after} seq_cst seq_cst")
    return f.value(f"extractvalue {{ i64, i1 }} {both}, 1")


def _serve(machine: Machine) -> Caller:
    f = Caller("serve", ("ptr %mail",), machine)
    sleeps, semaphore = f.at("%mail", _SLEEPS), f.at("%mail", _SEMAPHORE)
    f.call("sem_init", semaphore, "0", "0")
    _swap(f, "%mail", BUSY, IDLE)
    f.do("br label %anew")
    f.label("anew")
    f.do("br label %look")
    f.label("look")
    place = len(f.lines)
    f.lines.append("")
    f.do(f"switch i64 {f.seen('%mail')}, label %idle [ i64 {POSTED}, label %begin i64 {STOPPED}, label %end ]")
    f.label("idle")
    after = f.spin("%turn", "look", "tired")
    f.lines[place] = f"  %turn = phi i64 [ 0, %anew ], [ {after}, %{f.block} ]"
    f.label("tired")  # it says so and looks again: so either it sees a job, or whoever has posted that sees this
    f.show(1, sleeps)
    f.do(f"br i1 {f.is_equal(f.seen('%mail'), IDLE)}, label %sleep, label %awake")
    f.label("awake")
    told = f.is_equal(f.value(f"atomicrmw xchg ptr {sleeps}, i64 0 seq_cst"), 0)
    f.do(f"br i1 {told}, label %sleep, label %anew")
    f.label("sleep")
    f.call("sem_wait", semaphore)
    f.do("br label %anew")
    f.label("begin")
    f.do(f"br i1 {_swap(f, '%mail', POSTED, BUSY)}, label %work, label %anew")
    f.label("work")
    job, thread = f.load("ptr", f.at("%mail", JOB), 8), f.load("i64", f.at("%mail", _THREAD), 8)
    f.do(f"call void @work(ptr {job}, i64 {thread})")
    _swap(f, "%mail", BUSY, IDLE)
    f.do("br label %anew")
    f.label("end")
    return f


def _lead(machine: Machine) -> Caller:
    f = Caller("lead", ("ptr %mails", "i64 %count", "ptr %job"), machine)

    def post(index: str) -> None:
        mail = f.step("%mails", index, MAIL_BYTES)
        f.when(f.is_equal(f.seen(mail), IDLE), lambda: _post(f, mail, f.add(index, 1)))

    def take_back(index: str) -> None:
        mail = f.step("%mails", index, MAIL_BYTES)
        mine = f.is_equal(f.load("ptr", f.at(mail, JOB), 8), "%job", "ptr")
        f.when(mine, lambda: _take_back(f, mail, apart))

    f.each("0", "%count", post)
    f.do("call void @work(ptr %job, i64 0)")
    apart = f.value(f"icmp sgt i64 {f.load('i64', f.at('%job', 8 * FULL), 8)}, 0")
    f.each("0", "%count", take_back)
    return f


def _post(f: Caller, mail: str, thread: str) -> None:
    f.store("ptr", "%job", f.at(mail, JOB), 8)
    f.store("i64", thread, f.at(mail, _THREAD), 8)
    f.show(POSTED, mail)
    slept = f.is_equal(f.value(f"atomicrmw xchg ptr {f.at(mail, _SLEEPS)}, i64 0 seq_cst"), 1)
    f.when(slept, lambda: _wake(f, mail))


def _take_back(f: Caller, mail: str, apart: str) -> None:
    """Take a job back; if threads do samples `apart`, wait for one that has begun."""
    _swap(f, mail, POSTED, IDLE)
    f.when(apart, lambda: f.wait(lambda: f.value(f"icmp ne i64 {f.seen(mail)}, {BUSY}")))


def _wake(f: Caller, mail: str) -> None:
    f.call("sem_post", f.at(mail, _SEMAPHORE))


def _dismiss(machine: Machine) -> Caller:
    f = Caller("dismiss", ("ptr %mails", "i64 %count"), machine)

    def stop(index: str) -> None:
        mail = f.step("%mails", index, MAIL_BYTES)
        f.show(STOPPED, mail)
        _wake(f, mail)

    f.each("0", "%count", stop)
    return f
