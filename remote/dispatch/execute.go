package dispatch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"fisub/internal/plain"
	"fisub/remote"
	"fisub/remote/agent"
)

// An executor performs actions, each long one in a goroutine, and passes the facts to the state. Only its loop accesses
// the state, the plan and the events.
type executor struct {
	*Dispatcher
	base  context.Context // for long actions
	facts chan message
	stops map[*job]context.CancelFunc // cancel the tasks of jobs
	tasks sync.WaitGroup
}

func newExecutor(d *Dispatcher, base context.Context) *executor {
	return &executor{Dispatcher: d, base: base, facts: make(chan message), stops: map[*job]context.CancelFunc{}}
}

// A message is a fact for the loop. taken receives the first error of the resulting actions.
type message struct {
	fact  fact
	taken chan error
}

// send passes a fact to the loop and returns when the resulting actions are done or started.
func (e *executor) send(f fact) error {
	m := message{f, make(chan error)}
	e.facts <- m
	return <-m.taken
}

// loop runs until no task is left. The process is to end when ctx does, and the run is cancelled when marked is closed.
func (e *executor) loop(ctx context.Context, marked <-chan struct{}) {
	s, done := e.state, ctx.Done()
	tick := time.NewTicker(min(s.rules.overtime/10, time.Second))
	defer tick.Stop()
	for {
		if err := ctx.Err(); err != nil && s.paused == nil {
			s.apply(paused{err})
		}
		_ = e.perform(s.next(time.Now()))
		if s.over() {
			e.tasks.Wait() // a task may be releasing a job whose handle could not be saved
			return
		}
		select {
		case m := <-e.facts:
			s.apply(m.fact)
			m.taken <- e.perform(s.next(time.Now()))
		case <-marked:
			s.apply(broken{ErrCancelled})
			marked = nil
		case <-done:
			done = nil
		case <-tick.C:
		}
	}
}

// An unsavedError is a failure to write the plan.
type unsavedError struct{ error }

func (e *unsavedError) Unwrap() error { return e.error }

// perform performs actions. After a local error it starts no submission or follower.
func (e *executor) perform(actions []action) (err error) {
	s := e.state
	for _, a := range actions {
		switch a := a.(type) {
		case save:
			if saved := e.Plan.Save(e.Folder.Path()); saved != nil && err == nil {
				err = &unsavedError{saved}
			}
		case tell:
			e.events.Emit(a.event)
		case hand:
			if err == nil {
				err = e.settings.Line(a.job.JobRecord, a.text)
			}
		case stop:
			if cancel := e.stops[a.job]; cancel != nil {
				cancel()
			}
		case submit:
			if err == nil {
				e.begin(a.job, e.submit)
				continue
			}
			s.apply(broken{err})
			s.apply(refused{a.job, err})
		case follow:
			if err == nil {
				w := &watcher{executor: e, job: a.job, from: a.job.stream.size, most: s.room(a.job), after: a.after}
				e.begin(a.job, w.follow)
				continue
			}
			s.apply(broken{err})
			s.apply(waited{job: a.job, err: err})
		case clear:
			e.begin(a.job, e.clear)
		case collect:
			e.begin(a.job, e.collect)
		case release:
			e.begin(a.job, func(ctx context.Context, p remote.Provider, j *job, spec JobRecord) {
				_ = remote.Sleep(ctx, a.after)
				ctx, cancel := context.WithTimeout(ctx, time.Minute)
				defer cancel()
				_ = e.send(released{j, releaseJob(ctx, p, &spec), time.Now()})
			})
		}
	}
	if err == nil {
		err = e.events.Err()
	}
	if err != nil {
		s.apply(broken{err})
	}
	return err
}

// begin starts a task with a copy of the job.
func (e *executor) begin(j *job, do func(context.Context, remote.Provider, *job, JobRecord)) {
	ctx, cancel := context.WithCancel(e.base)
	e.stops[j] = cancel
	provider, spec := e.providers[j.Place.Table], *j.JobRecord
	e.tasks.Go(func() {
		defer cancel()
		do(ctx, provider, j, spec)
	})
}

func (e *executor) clear(ctx context.Context, p remote.Provider, j *job, spec JobRecord) {
	id, _, _ := strings.Cut(spec.ID, "-r")
	id = fmt.Sprintf("%s-r%d", id, time.Now().UnixMilli()%1e6)
	_ = e.send(cleared{j, id, releaseJob(ctx, p, &spec)})
}

func (e *executor) submit(ctx context.Context, p remote.Provider, j *job, spec JobRecord) {
	if p == nil {
		_ = e.send(refused{j, &noTableError{spec.Place}})
		return
	}
	files, args, err := e.files(ctx, spec.Workloads)
	if err != nil {
		_ = e.send(refused{j, err})
		return
	}
	plan := e.Plan
	sent := &remote.Job{ID: spec.ID, Files: files, Args: args, GPU: plan.GPU, Limit: plan.Limit, Place: spec.Place.Place,
		Busy: plan.Busy, Env: map[string]string{"FIB_DATASET_PATH": ""}, Key: spec.Key,
		Labels: map[string]string{"run": plan.Run.ID, "definition": plan.Run.Definition},
		Tell:   func(is remote.Stage) { _ = e.send(changed{j, is, time.Now()}) }}
	h, err := p.Submit(ctx, sent, func(sent, total int64) {
		if e.settings.Progress != nil {
			e.settings.Progress(spec.Place.String(), sent, total)
		}
	})
	if err != nil {
		_ = e.send(refused{j, err})
		return
	}
	if _, unsaved := errors.AsType[*unsavedError](e.send(accepted{j, h, time.Now()})); unsaved {
		// Nobody could find the job again, so it must not run.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		_ = p.Release(ctx, h)
	}
}

// streamOf returns the path of a job's stream in the run folder.
func streamOf(id string) string { return filepath.Join(streams, id+".jsonl") }

// room returns the maximum bytes of a job's stream.
func (s *state) room(j *job) int64 {
	if s.isTool() {
		return cmp.Or(s.rules.stream, UsualStream)
	}
	return cmp.Or(s.rules.stream, room(len(j.Workloads)))
}

// replay reads the recorded streams of jobs that may be running.
func (e *executor) replay() {
	for _, j := range e.state.active() {
		if j.Handle == nil || e.state.broken != nil {
			continue
		}
		f, err := plain.Open(filepath.Join(e.Folder.Path(), streamOf(j.ID)))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			_, err = io.Copy(writer(func(p []byte) error {
				e.state.apply(received{job: j, text: p})
				return e.perform(e.state.decided())
			}), f)
			f.Close()
		}
		if err != nil {
			e.state.apply(broken{err})
		}
	}
}

// A watcher passes a job's stream to a file and then to the state. Line numbers tell a later client which events are
// missing.
type watcher struct {
	*executor
	job   *job
	after time.Duration // delay before it starts
	from  int64         // bytes already in the file
	most  int64         // maximum bytes of the stream
	file  *os.File
}

func (w *watcher) follow(ctx context.Context, p remote.Provider, j *job, spec JobRecord) {
	exit, err := remote.Exit{}, remote.Sleep(ctx, w.after)
	if err == nil && p == nil {
		err = &noTableError{spec.Place}
	}
	if err == nil {
		if w.file, err = plain.OpenFile(filepath.Join(w.Folder.Path(), streamOf(spec.ID)),
			os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644); err != nil {
			_ = w.send(broken{err})
		}
	}
	if err == nil {
		h := *spec.Handle
		h.Key = spec.Key
		exit, err = p.Wait(ctx, h, w.from, w)
		w.file.Close()
	}
	_ = w.send(waited{j, exit, err, time.Now()})
}

func (w *watcher) Write(p []byte) (int, error) {
	if w.from += int64(len(p)); w.from > w.most {
		return 0, fmt.Errorf("its output is larger than %d bytes, too much for %s; the place may be broken", w.most,
			plain.Count(len(w.job.Workloads), "workload"))
	}
	if _, err := w.file.Write(p); err != nil {
		_ = w.send(broken{err})
		return 0, err
	}
	return len(p), w.send(received{w.job, p, time.Now()})
}

// State passes on the host's view of the job.
func (w *watcher) State(is remote.Stage) { _ = w.send(changed{w.job, is, time.Now()}) }

func (e *executor) collect(ctx context.Context, p remote.Provider, j *job, spec JobRecord) {
	f := collected{job: j}
	if p != nil {
		dir := filepath.Join(e.Folder.Path(), "log", spec.ID)
		if f.err = os.MkdirAll(dir, 0o755); f.err == nil {
			ctx, cancel := context.WithTimeout(ctx, time.Minute)
			defer cancel()
			f.err = p.Collect(ctx, *spec.Handle, dir)
		}
		if errors.Is(f.err, fs.ErrNotExist) {
			f.err = nil
		}
		log, _ := os.ReadFile(filepath.Join(dir, agent.LogName))
		f.text, f.hint = LastWords(log)
	}
	_ = e.send(f)
}

// LastWords returns the last error in a job's log, and its hint.
func LastWords(log []byte) (text, hint string) {
	for line := range strings.Lines(string(log)) {
		line = strings.TrimSpace(line)
		if word, ok := strings.CutPrefix(line, "fisub: "); ok {
			text, hint = word, ""
		} else if word, ok := strings.CutPrefix(line, "hint: "); ok {
			hint = word
		}
	}
	return text, hint
}
