/* One job at a time. Threads take items from a shared counter, so that one which lost its core to another process holds up no
 * more than what it has in hand.
 * Idle threads spin for a little while, since the next job mostly comes at once, and then sleep. */
#define _GNU_SOURCE
#include "pool.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MAX_THREADS 256
#define LINE __attribute__((aligned(64)))

static struct {
    LINE _Atomic uint32_t number; /* of the job, which grows; what sleeping threads wait for */
    LINE _Atomic uint64_t next;   /* number of the job << 32 | first item that nobody has taken */
    LINE _Atomic uint32_t left;   /* items that are not done */
    LINE _Atomic uint32_t asleep;
    _Atomic uint32_t count, grain;
    task *_Atomic run;
    void *_Atomic context;
} job;

static int threads = 1;
static uint64_t spin_nanoseconds;

static uint64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Items are taken under the job's number: a thread that comes late finds another number, and takes none. */
static void work(uint32_t number, int worker)
{
    uint64_t taken = atomic_load_explicit(&job.next, memory_order_acquire);
    for (;;) {
        uint32_t begin = (uint32_t)taken;
        if (taken >> 32 != number)
            return;
        uint32_t count = atomic_load_explicit(&job.count, memory_order_relaxed);
        uint32_t grain = atomic_load_explicit(&job.grain, memory_order_relaxed);
        task *run = atomic_load_explicit(&job.run, memory_order_relaxed);
        void *context = atomic_load_explicit(&job.context, memory_order_relaxed);
        atomic_thread_fence(memory_order_acquire); /* if these are of the next job already, `next` is closed below */
        if (begin >= count)
            return;
        uint32_t end = count - begin < grain ? count : begin + grain;
        if (!atomic_compare_exchange_weak_explicit(&job.next, &taken, (uint64_t)number << 32 | end, memory_order_acq_rel,
                                                   memory_order_acquire))
            continue;
        run(context, (int)begin, (int)end, worker);
        atomic_fetch_sub_explicit(&job.left, end - begin, memory_order_release);
        taken = atomic_load_explicit(&job.next, memory_order_acquire);
    }
}

static void await_job(uint32_t seen)
{
    uint64_t until = now() + spin_nanoseconds;
    for (int i = 1; atomic_load_explicit(&job.number, memory_order_acquire) == seen; i++) {
        relax();
        if (i % 64 || now() < until)
            continue;
        atomic_fetch_add(&job.asleep, 1);
        while (atomic_load(&job.number) == seen)
            syscall(SYS_futex, &job.number, FUTEX_WAIT_PRIVATE, seen, 0, 0, 0);
        atomic_fetch_sub(&job.asleep, 1);
        return;
    }
}

static void *serve(void *worker)
{
    uint32_t seen = 0;
    for (;;) {
        await_job(seen);
        seen = atomic_load_explicit(&job.number, memory_order_acquire);
        work(seen, (int)(intptr_t)worker);
    }
    return 0;
}

void pool_run(task *run, void *context, int count, int grain)
{
    if (count <= grain || threads == 1) {
        if (count > 0)
            run(context, 0, count, 0);
        return;
    }
    uint32_t number = atomic_load_explicit(&job.number, memory_order_relaxed) + 1;
    /* Closed first, or a thread that is late for the last job could take an item of what is being written here. */
    atomic_store_explicit(&job.next, (uint64_t)number << 32 | UINT32_MAX, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    atomic_store_explicit(&job.count, (uint32_t)count, memory_order_relaxed);
    atomic_store_explicit(&job.grain, (uint32_t)grain, memory_order_relaxed);
    atomic_store_explicit(&job.run, run, memory_order_relaxed);
    atomic_store_explicit(&job.context, context, memory_order_relaxed);
    atomic_store_explicit(&job.left, (uint32_t)count, memory_order_relaxed);
    atomic_store_explicit(&job.next, (uint64_t)number << 32, memory_order_release);
    atomic_store(&job.number, number);
    if (atomic_load(&job.asleep))
        syscall(SYS_futex, &job.number, FUTEX_WAKE_PRIVATE, INT_MAX, 0, 0, 0);
    work(number, 0);
    for (int i = 1; atomic_load_explicit(&job.left, memory_order_acquire); i++) {
        relax();
        if (i % 1024 == 0)
            sched_yield(); /* another thread may have lost its core to this one */
    }
}

int pool_size(void)
{
    return threads;
}

/* Starts the threads, once; they live as long as the process. Returns how many there are, the caller included. */
int ringpost_start_threads(int wanted, int spin_microseconds)
{
    spin_nanoseconds = (uint64_t)spin_microseconds * 1000u;
    for (; threads < wanted && threads < MAX_THREADS; threads++) {
        pthread_t thread;
        if (pthread_create(&thread, 0, serve, (void *)(intptr_t)threads))
            break;
        pthread_detach(thread);
    }
    return threads;
}
