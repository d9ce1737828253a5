// Package remote is the contract with hosts that have the GPUs that this machine lacks. A job is one command over a
// bundle of files; a provider takes it to a host, hands its stream of events on, fetches what it left and frees what it
// held. remote/agent is what runs on the host, for every provider alike; remote/dispatch splits a run into jobs and
// makes one run of them again. This package is not for knowing what a job computes: it never looks into the files or
// the events.
//
// The providers are remote/ssh, remote/slurm, remote/kubernetes, remote/aws, remote/modal and remote/loopback, which
// needs no other host. remote/remotetest is the suite that each of them passes; a new provider begins there.
package remote

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

// A Job is one run of the agent on one host. It is sent as JSON, and holds no secret but its Key.
type Job struct {
	ID     string            `json:"id"`    // unique; at most 63 of a-z, 0-9 and "-": it names folders, jobs and tags
	Files  []File            `json:"files"` // the bundle; at least the program
	Args   []string          `json:"args"`  // the program, which is the Name of an executable file, and its arguments
	Env    map[string]string `json:"env,omitempty"`
	GPU    string            `json:"gpu,omitempty"` // kind that is wanted: "b200", "h200"; "" where the job needs none
	Limit  time.Duration     `json:"limit"`         // wall time on the host, in nanoseconds; enforced there, above zero
	Place  Place             `json:"place"`
	Busy   bool              `json:"busy,omitempty"`   // run on a GPU also where another process uses it
	Labels map[string]string `json:"labels,omitempty"` // shown where the provider shows jobs: run, definition

	// Tell is told for what a Submit waits that takes long; it may be nil.
	Tell func(State) `json:"-"`

	// Key is that of the Seal with which the agent signs what it says; "" where it signs nothing. Before anything of the
	// submission runs, no file that it can read holds the key any more: the agent takes it out of its copy of the job.
	Key string `json:"key,omitempty"`
}

// A File is one file of a bundle. Its content is known by its hash, so a provider that holds it already does not send
// it again.
type File struct {
	Name   string `json:"name"`   // relative, "/" between parts, no part empty, "." or ".."
	SHA256 string `json:"sha256"` // of the content, 64 lower-case hexadecimal digits
	Size   int64  `json:"size"`   // in bytes
	Exec   bool   `json:"exec,omitempty"`
	Path   string `json:"-"` // on this machine
}

// A Place is where at most one job of a run is at a time: one GPU of one host, or one slot of a queue.
type Place struct {
	Host string `json:"host,omitempty"` // as the config names it; "" where the provider chooses
	GPU  int    `json:"gpu"`            // ordinal on the host; -1 where the host or the queue chooses
}

func (p Place) String() string {
	switch {
	case p.Host == "":
		return "any host"
	case p.GPU < 0:
		return p.Host
	}
	return fmt.Sprintf("%s gpu %d", p.Host, p.GPU)
}

// A Handle is all that another process needs to find the job again. It is stored as JSON and holds no secret.
type Handle struct {
	Provider string          `json:"provider"` // kind: "ssh", "slurm", ...
	Job      string          `json:"job"`      // Job.ID
	Place    Place           `json:"place"`
	Data     json.RawMessage `json:"data"` // the provider's own

	// Key is that of the Job, for a Wait that is to know the agent's Exit from one that the submission has written.
	Key string `json:"-"`
}

// NewHandle gives a handle; data must be what JSON can hold.
func NewHandle(provider, job string, place Place, data any) Handle {
	raw, err := json.Marshal(data)
	if err != nil {
		panic(err)
	}
	return Handle{Provider: provider, Job: job, Place: place, Data: raw}
}

// An End says how a job ended.
type End string

const (
	Exited    End = "exited"    // the program ended by itself: Code is its exit status
	Limited   End = "limit"     // it ran longer than Job.Limit
	Cancelled End = "cancelled" // Release, or the user on the provider's side
	Refused   End = "refused"   // the agent did not start it: a wrong hash, a busy GPU, no driver, a full disk
	Lost      End = "lost"      // the host or the agent is gone without a word
)

// Known tells whether the End is one of those above: what a host says may be anything.
func (e End) Known() bool {
	switch e {
	case Exited, Limited, Cancelled, Refused, Lost:
		return true
	}
	return false
}

// An Exit is the end of a job. A program that ended with another status than 0 is no error of the provider.
type Exit struct {
	End  End    `json:"end"`
	Code int    `json:"code"`           // exit status; 128 and the signal's number for a signal; with Exited only
	Text string `json:"text,omitempty"` // what happened, in one line; the provider's own words where it has some
	Hint string `json:"hint,omitempty"` // what to do about it

	Lines int64  `json:"lines,omitempty"` // of the stream; with a MAC only
	MAC   string `json:"mac,omitempty"`   // by the job's Seal: the agent says so, and nobody else; "" where not known
}

// A Phase is what a job that has not ended does.
type Phase string

const (
	Queued   Phase = "queued"   // the provider has accepted it
	Starting Phase = "starting" // a host is being made ready
	Running  Phase = "running"
	Away     Phase = "away" // the host cannot be reached for the moment; the provider keeps trying
)

// A State is told while a job is waited for, whenever it changes.
type State struct {
	Phase Phase
	Text  string    // "position 3 of 7", "node gpu04", the error while Away
	Start time.Time // estimated, while Queued; zero where it is not known
}

// A Watcher follows a job. Write takes the bytes of the event stream in order, whole lines or not, each byte once; its
// error ends the Wait. Both are called from one goroutine at a time.
type Watcher interface {
	io.Writer
	State(State)
}

// A Provider takes jobs to hosts of one kind. Its methods may be called from several goroutines at a time. Errors name
// the provider and the host, and carry the provider's own words; a *Denied says more. After ctx has ended a method
// returns soon and with an error that wraps ctx's.
type Provider interface {
	// Places gives the places that the config names, in its order, without asking a host: for a queue, as many as jobs may
	// be in it at a time, at most n. No two have the same text: what is wrong with one says nothing of the others.
	Places(n int) []Place

	// Check asks each host, or the service, whether a job could run now, without cost. An unreachable host is a Host with
	// Err set, not an error.
	Check(ctx context.Context) ([]Host, error)

	// Submit sends what the host lacks of the bundle and starts the job, or queues it. It returns when the job is accepted
	// for good: it goes on when this process ends. On an error nothing is left running. progress, which may be nil, is
	// told how many bytes of total were sent; total counts only what must be sent.
	Submit(ctx context.Context, job *Job, progress func(sent, total int64)) (Handle, error)

	// Wait writes the job's event stream to w from byte offset from on, as it grows, and returns when the job has ended
	// and all of its stream is written. It reconnects by itself after a lost connection, and gives Lost when it has reason
	// to believe that the job will say nothing more. That its host is out of reach, or does not let the user in any more,
	// is none: Wait then gives up with the *Denied at the latest after the time that the table sets for that, or never.
	// The job goes on then, as where ctx ends first. Waiting for a job that has ended, or a second time, is allowed.
	// Where h has a Key, an exit.json that the agent has not signed ends no job while the agent may live, and says of no
	// job that its program exited.
	Wait(ctx context.Context, h Handle, from int64, w Watcher) (Exit, error)

	// Collect copies the job's log into the folder dst, which exists: agent.LogName, and what else the job left beside its
	// stream. A job that has not ended is collected as far as it is.
	Collect(ctx context.Context, h Handle, dst string) error

	// Release ends the job where it runs, and frees all it held: processes, queue entries, sandboxes, instances, its
	// folder. The bundle's files may stay, for the next job. It may be called at any time and again.
	Release(ctx context.Context, h Handle) error

	// List gives the jobs of this user that still hold something on the provider's side, also those of other clients. With
	// an error it gives those that it could find.
	List(ctx context.Context) ([]Handle, error)

	// Close ends connections. No job ends with it.
	Close() error
}

// A Host is one line of `fisub remote hosts`.
type Host struct {
	Name   string `json:"name"`
	State  string `json:"state"`            // "ready", "busy", "down", the queue's word
	Detail string `json:"detail,omitempty"` // "2 x NVIDIA B200, driver 580.95"
	Err    error  `json:"-"`
}

// A LocalError is one of this machine, such as a file of the bundle that cannot be read: it is not sent again, and it
// is not the host's. A *fs.PathError alone does not say so, since the pipe to an ssh that died gives one too.
type LocalError struct{ Err error }

func (e *LocalError) Error() string { return e.Err.Error() }
func (e *LocalError) Unwrap() error { return e.Err }

// Local gives err as a LocalError, but for nil and the end of a file.
func Local(err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	return &LocalError{Err: err}
}

// A Denied error says that the provider or a host will not take the job.
type Denied struct {
	// Code is "credentials", "host-key", "unreachable", "no-such", "quota", "capacity", "no-driver", "old-driver", "arch",
	// "disk", "limit" or "image".
	Code     string
	Provider string // name of the table: "lab"
	Host     string // "" where it is not about one host
	Text     string // in the provider's own words
	Hint     string // what to do
}

func (e *Denied) Error() string {
	text := e.Text
	if e.Host != "" {
		text = e.Host + ": " + strings.TrimPrefix(e.Text, e.Host+": ")
	}
	if e.Provider != "" {
		text = e.Provider + ": " + text
	}
	return text
}

// Advice returns the hint of the error.
func (e *Denied) Advice() string { return e.Hint }

// CodeOf gives the Code of the *Denied that err is or wraps; "" where it is none.
func CodeOf(err error) string {
	denied, ok := errors.AsType[*Denied](err)
	if !ok {
		return ""
	}
	return denied.Code
}

// Sleep waits for d, or until ctx is done, whose error it then gives.
func Sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
