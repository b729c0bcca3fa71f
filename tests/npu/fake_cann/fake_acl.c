/* A functional stand-in for libascendcl: one "Ascend910B3" whose memory is host memory.
 *
 * Streams are FIFO queues of tasks: copies, fills, event records, waits for events, and jobs (compute, handed in
 * from Python). In immediate mode a task runs when it is enqueued. In deferred mode it runs only when somebody
 * orders it: the host synchronises with its stream, with an event recorded behind it or with the device, or a
 * task of another stream that runs waits for such an event. That is the latest time at which a real device may
 * run it, so a forgotten wait, an early read or a staging buffer that is overwritten too soon shows as wrong
 * values instead of now and then.
 *
 * A copy to the host poisons its target when it is enqueued, and fresh memory is poisoned, so that what nobody
 * has written yet is never right by accident.
 *
 * One thread at a time runs tasks; events and streams are never freed (a process of tests ends soon).
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "acl/acl_op_compiler.h"
#include "acl/acl_rt.h"

#define POISON 0xA5
#define OUT_OF_MEMORY 207001

typedef void (*Job)(long);
typedef void (*Hook)(int);

enum Count {
    SYNC_STREAM, SYNC_EVENT, SYNC_DEVICE, BLOCKING_COPY, ASYNC_COPY, RECORD, WAIT, JOB, MALLOC, PENDING, COUNTS
};
enum Kind { COPY, FILL, RECORD_EVENT, WAIT_EVENT, RUN_JOB };

typedef struct Task Task;
typedef struct Stream Stream;
typedef struct Event Event;

struct Event {
    Stream *stream;    /* of the newest record */
    uint64_t recorded; /* number of the newest record; 0: never recorded, which counts as done */
    uint64_t done;     /* number of the newest record that has run */
    struct timespec at;
};

struct Task {
    Task *next;
    enum Kind kind;
    void *target;
    const void *source;
    size_t bytes;
    int value;
    Event *event;
    Stream *recorder; /* the stream whose record a wait waits for */
    uint64_t number;
    Job job;
    long argument;
};

struct Stream {
    Task *head, *tail;
    Stream *older;
    int32_t id;
};

static Stream default_stream;
static Stream *streams = &default_stream;
static long counts[COUNTS];
static int deferred;
static int32_t created = 1;
static uint64_t records;
static Hook on_sync;
static pthread_mutex_t lock;

__attribute__((constructor)) static void begin(void) {
    pthread_mutexattr_t kind;
    pthread_mutexattr_init(&kind);
    pthread_mutexattr_settype(&kind, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&lock, &kind);
}

static Stream *stream_of(void *handle) { return handle ? handle : &default_stream; }

/* --- Running ---------------------------------------------------------------------------------------- */

static void run_until(Stream *stream, const Event *event, uint64_t number);

static void run(const Task *task) {
    switch (task->kind) {
    case COPY: memcpy(task->target, task->source, task->bytes); break;
    case FILL: memset(task->target, task->value, task->bytes); break;
    case RECORD_EVENT:
        if (task->number > task->event->done) task->event->done = task->number;
        clock_gettime(CLOCK_MONOTONIC, &task->event->at);
        break;
    case WAIT_EVENT: run_until(task->recorder, task->event, task->number); break;
    case RUN_JOB: task->job(task->argument); break;
    }
}

static int run_next(Stream *stream) {
    Task *task = stream->head;
    if (!task) return 0;
    stream->head = task->next;
    if (!stream->head) stream->tail = NULL;
    counts[PENDING]--;
    run(task);
    free(task);
    return 1;
}

static void run_all(Stream *stream) {
    while (run_next(stream)) {}
}

static void run_until(Stream *stream, const Event *event, uint64_t number) {
    while (event->done < number && stream && run_next(stream)) {}
}

static void enqueue(Stream *stream, Task task) {
    pthread_mutex_lock(&lock);
    if (!deferred && !stream->head) {
        run(&task);
    } else {
        Task *kept = malloc(sizeof task);
        *kept = task;
        kept->next = NULL;
        counts[PENDING]++;
        if (stream->tail) stream->tail->next = kept;
        else stream->head = kept;
        stream->tail = kept;
        if (!deferred) run_all(stream);
    }
    pthread_mutex_unlock(&lock);
}

/* The host waits: tell whoever listens, then run what it waits for. */
static void waits(enum Count kind) {
    counts[kind]++;
    if (on_sync) on_sync(kind);
}

/* --- For the tests ---------------------------------------------------------------------------------- */

long fake_acl_count(int kind) { return counts[kind]; }
void fake_acl_defer(int on) { deferred = on; }
void fake_acl_on_sync(Hook hook) { on_sync = hook; }

void fake_acl_drain(void *stream) {
    pthread_mutex_lock(&lock);
    run_all(stream_of(stream));
    pthread_mutex_unlock(&lock);
}

void fake_acl_launch(void *stream, Job job, long argument) {
    counts[JOB]++;
    enqueue(stream_of(stream), (Task){.kind = RUN_JOB, .job = job, .argument = argument});
}

/* --- Device and memory ------------------------------------------------------------------------------ */

static _Thread_local int32_t device;
static int context;

const char *aclrtGetSocName(void) { return "Ascend910B3"; }
const char *aclGetRecentErrMsg(void) { return ""; }
aclError aclrtGetDeviceCount(uint32_t *count) { *count = 1; return 0; }
aclError aclrtGetDevice(int32_t *id) { *id = device; return 0; }
aclError aclrtSetDevice(int32_t id) { device = id; return 0; }
aclError aclrtGetCurrentContext(aclrtContext *out) { *out = &context; return 0; }
aclError aclrtGetDeviceInfo(uint32_t id, aclrtDevAttr what, int64_t *value) { *value = 0; return 0; }
aclError aclrtGetLogicDevIdByUserDevId(const int32_t user, int32_t *const logic) { *logic = user; return 0; }
aclError aclrtGetPrimaryCtxState(int32_t id, uint32_t *flags, int32_t *active) {
    if (flags) *flags = 0;
    *active = 1;
    return 0;
}
aclError aclrtGetMemInfo(aclrtMemAttr what, size_t *unused, size_t *total) {
    *unused = (size_t)7 << 30;
    *total = (size_t)8 << 30;
    return 0;
}
aclError aclrtPointerGetAttributes(const void *pointer, aclrtPtrAttributes *out) {
    memset(out, 0, sizeof *out);
    out->location.type = ACL_MEM_LOCATION_TYPE_UNREGISTERED;
    return 0;
}
size_t aclGetCompileoptSize(aclCompileOpt option) { return 64; }
aclError aclGetCompileopt(aclCompileOpt option, char *value, size_t size) { strncpy(value, "0", size); return 0; }

static aclError allocate(void **out, size_t bytes) {
    counts[MALLOC]++;
    bytes = bytes ? bytes : 512;
    if (posix_memalign(out, 512, bytes)) return OUT_OF_MEMORY;
    memset(*out, POISON, bytes);
    return 0;
}
aclError aclrtMalloc(void **out, size_t bytes, aclrtMemMallocPolicy policy) { return allocate(out, bytes); }
aclError aclrtMallocAlign32(void **out, size_t bytes, aclrtMemMallocPolicy policy) { return allocate(out, bytes); }
aclError aclrtMallocHost(void **out, size_t bytes) { return allocate(out, bytes); }
aclError aclrtMallocHostWithCfg(void **out, uint64_t bytes, aclrtMallocConfig *config) { return allocate(out, bytes); }
aclError aclrtFree(void *memory) { free(memory); return 0; }
aclError aclrtFreeHost(void *memory) { free(memory); return 0; }

/* A blocking copy does not wait for streams: as on the device, whoever needs that order has to ask for it. */
aclError aclrtMemcpy(void *target, size_t room, const void *source, size_t bytes, aclrtMemcpyKind kind) {
    waits(BLOCKING_COPY);
    memcpy(target, source, bytes);
    return 0;
}
aclError aclrtMemset(void *target, size_t room, int32_t value, size_t bytes) { memset(target, value, bytes); return 0; }
aclError aclrtMemcpyAsync(
    void *target, size_t room, const void *source, size_t bytes, aclrtMemcpyKind kind, aclrtStream stream) {
    counts[ASYNC_COPY]++;
    if (deferred && kind == ACL_MEMCPY_DEVICE_TO_HOST) memset(target, POISON, bytes);
    enqueue(stream_of(stream), (Task){.kind = COPY, .target = target, .source = source, .bytes = bytes});
    return 0;
}
aclError aclrtMemsetAsync(void *target, size_t room, int32_t value, size_t bytes, aclrtStream stream) {
    enqueue(stream_of(stream), (Task){.kind = FILL, .target = target, .value = value, .bytes = bytes});
    return 0;
}

/* --- Streams and events ----------------------------------------------------------------------------- */

static aclError make_stream(aclrtStream *out) {
    Stream *stream = calloc(1, sizeof *stream);
    pthread_mutex_lock(&lock);
    stream->id = created++;
    stream->older = streams;
    streams = stream;
    pthread_mutex_unlock(&lock);
    *out = stream;
    return 0;
}
aclError aclrtCreateStream(aclrtStream *out) { return make_stream(out); }
aclError aclrtCreateStreamWithConfig(aclrtStream *out, uint32_t priority, uint32_t flags) { return make_stream(out); }
aclError aclrtDestroyStream(aclrtStream stream) { fake_acl_drain(stream); return 0; }
aclError aclrtDestroyStreamForce(aclrtStream stream) { fake_acl_drain(stream); return 0; }
aclError aclrtStreamGetId(aclrtStream stream, int32_t *id) { *id = stream_of(stream)->id; return 0; }
aclError aclrtStreamQuery(aclrtStream stream, aclrtStreamStatus *out) {
    *out = stream_of(stream)->head ? ACL_STREAM_STATUS_NOT_READY : ACL_STREAM_STATUS_COMPLETE;
    return 0;
}
aclError aclrtSynchronizeStream(aclrtStream stream) {
    waits(SYNC_STREAM);
    fake_acl_drain(stream);
    return 0;
}
aclError aclrtSynchronizeStreamWithTimeout(aclrtStream stream, int32_t timeout_ms) { return aclrtSynchronizeStream(stream); }
aclError aclrtSynchronizeDevice(void) {
    waits(SYNC_DEVICE);
    pthread_mutex_lock(&lock);
    for (Stream *stream = streams; stream; stream = stream->older) run_all(stream);
    pthread_mutex_unlock(&lock);
    return 0;
}
aclError aclrtSynchronizeDeviceWithTimeout(int32_t timeout_ms) { return aclrtSynchronizeDevice(); }

static aclError make_event(aclrtEvent *out) { *out = calloc(1, sizeof(Event)); return 0; }
aclError aclrtCreateEventWithFlag(aclrtEvent *out, uint32_t flags) { return make_event(out); }
aclError aclrtCreateEventExWithFlag(aclrtEvent *out, uint32_t flags) { return make_event(out); }
aclError aclrtDestroyEvent(aclrtEvent event) { return 0; }
aclError aclrtResetEvent(aclrtEvent event, aclrtStream stream) { return 0; }
aclError aclrtRecordEvent(aclrtEvent handle, aclrtStream stream) {
    Event *event = handle;
    counts[RECORD]++;
    event->stream = stream_of(stream);
    event->recorded = ++records;
    enqueue(event->stream, (Task){.kind = RECORD_EVENT, .event = event, .number = event->recorded});
    return 0;
}
aclError aclrtStreamWaitEvent(aclrtStream stream, aclrtEvent handle) {
    Event *event = handle;
    counts[WAIT]++;
    enqueue(stream_of(stream), (Task){
        .kind = WAIT_EVENT, .event = event, .recorder = event->stream, .number = event->recorded});
    return 0;
}
aclError aclrtSynchronizeEvent(aclrtEvent handle) {
    Event *event = handle;
    waits(SYNC_EVENT);
    pthread_mutex_lock(&lock);
    run_until(event->stream, event, event->recorded);
    pthread_mutex_unlock(&lock);
    return 0;
}
aclError aclrtQueryEventStatus(aclrtEvent handle, aclrtEventRecordedStatus *out) {
    Event *event = handle;
    *out = event->done >= event->recorded ? ACL_EVENT_RECORDED_STATUS_COMPLETE : ACL_EVENT_RECORDED_STATUS_NOT_READY;
    return 0;
}
aclError aclrtQueryEventWaitStatus(aclrtEvent handle, aclrtEventWaitStatus *out) {
    Event *event = handle;
    *out = event->done >= event->recorded ? ACL_EVENT_WAIT_STATUS_COMPLETE : ACL_EVENT_WAIT_STATUS_NOT_READY;
    return 0;
}
aclError aclrtEventElapsedTime(float *ms, aclrtEvent from, aclrtEvent to) {
    const struct timespec *a = &((Event *)from)->at, *b = &((Event *)to)->at;
    *ms = (b->tv_sec - a->tv_sec) * 1e3f + (b->tv_nsec - a->tv_nsec) / 1e6f;
    return 0;
}
