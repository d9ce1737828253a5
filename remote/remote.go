// Package remote is the contract with providers: services and hosts whose GPUs run jobs. A job is one command over a
// bundle of files. A provider sends it to a host, passes on its event stream, collects its log and releases its
// resources. Package remote/agent runs on the host, for every provider; remote/dispatch splits a run into jobs and
// merges their results. This package never looks into the files or the events.
//
// The providers are remote/ssh, remote/slurm, remote/kubernetes, remote/aws, remote/modal and remote/loopback, which
// needs no other host. Each passes the test suite in remote/remotetest; start there to write a new one.
package remote

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// A Job is one run of the agent on one host. It is sent as JSON. Its only secret is its Key.
type Job struct {
	ID     string            `json:"id"`    // unique; at most 63 of a-z, 0-9 and "-"; names folders, jobs, tags
	Files  []File            `json:"files"` // the bundle; contains at least the program
	Args   []string          `json:"args"`  // the program (the Name of an executable file in Files) and its arguments
	Env    map[string]string `json:"env,omitempty"`
	GPU    string            `json:"gpu,omitempty"` // wanted kind, such as "b200"; "" if the job needs no GPU
	Limit  time.Duration     `json:"limit"`         // wall time on the host, in nanoseconds; positive; enforced there
	Place  Place             `json:"place"`
	Busy   bool              `json:"busy,omitempty"`   // run even if another process uses the GPU
	Labels map[string]string `json:"labels,omitempty"` // shown in the provider's list of jobs: run, definition

	// Tell is called when Submit has to wait; may be nil.
	Tell func(Stage) `json:"-"`

	// Key is the key of the Seal with which the agent signs its output; "" turns signing off. The agent deletes it from
	// its copy of the job before the program starts, so that the submission cannot read it.
	Key string `json:"key,omitempty"`
}

// A File is a file of a bundle. A provider does not send it if the host has a file with its hash.
type File struct {
	Name   string `json:"name"`   // relative path with "/"; no part is empty, "." or ".."
	SHA256 string `json:"sha256"` // of the content, 64 lower-case hexadecimal digits
	Size   int64  `json:"size"`   // in bytes
	Exec   bool   `json:"exec,omitempty"`
	Path   string `json:"-"` // on this machine
}

// A Place runs at most one job of a run at a time: it is one GPU of one host, or one slot of a queue.
type Place struct {
	Host string `json:"host,omitempty"` // name in the config; "" if the provider chooses
	GPU  int    `json:"gpu"`            // ordinal on the host; -1 if the host or the queue chooses
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

// A Handle lets another process find the job. It is stored as JSON, without the Key.
type Handle struct {
	Provider string          `json:"provider"` // kind: "ssh", "slurm", ...
	Job      string          `json:"job"`      // Job.ID
	Place    Place           `json:"place"`
	Data     json.RawMessage `json:"data"` // private to the provider

	// Key is the Job's Key. Wait needs it to tell the agent's Exit from a forged one.
	Key string `json:"-"`
}

// NewHandle returns a handle. It panics if data cannot be encoded as JSON.
func NewHandle(provider, job string, place Place, data any) Handle {
	raw, err := json.Marshal(data)
	if err != nil {
		panic(err)
	}
	return Handle{Provider: provider, Job: job, Place: place, Data: raw}
}

// An End is the way in which a job ended.
type End string

const (
	Exited    End = "exited"    // the program ended by itself: Code is its exit status
	Limited   End = "limit"     // it ran longer than Job.Limit
	Cancelled End = "cancelled" // by Release, or by the user through the provider's own tools
	Refused   End = "refused"   // the agent did not start the program: wrong hash, busy GPU, missing driver, full disk
	Lost      End = "lost"      // the host or the agent disappeared
)

// Known reports whether e is a constant above: a host may send anything.
func (e End) Known() bool {
	return slices.Contains([]End{Exited, Limited, Cancelled, Refused, Lost}, e)
}

// An Exit is the end of a job. A non-zero exit status is not an error of the provider.
type Exit struct {
	End  End    `json:"end"`
	Code int    `json:"code"`           // exit status, or 128 + signal number; only for Exited
	Text string `json:"text,omitempty"` // what happened, in one line; the provider's own message if there is one
	Hint string `json:"hint,omitempty"` // how to fix it

	Lines int64  `json:"lines,omitempty"` // number of lines in the stream; only with a MAC
	MAC   string `json:"mac,omitempty"`   // signature of the agent, made with the job's Seal; "" if unsigned
}

// A Phase is the current activity of a job that has not ended.
type Phase string

const (
	Queued   Phase = "queued"   // the provider has accepted it
	Starting Phase = "starting" // a host is being prepared
	Running  Phase = "running"
	Away     Phase = "away" // the host is unreachable at the moment; the provider keeps trying
)

// A Stage is the progress of a job. The Watcher gets each change.
type Stage struct {
	Phase Phase
	Text  string    // "position 3 of 7", "node gpu04"; while Away the error
	Start time.Time // estimate while Queued; zero if unknown
}

// A Watcher follows a job. Write gets the bytes of the event stream in order, each once, not necessarily in whole
// lines; its error ends the Wait. Write and State are not called concurrently.
type Watcher interface {
	io.Writer
	State(Stage)
}

// A Provider runs jobs on hosts of one kind. Its methods may be called concurrently. Errors name the provider and the
// host and contain the provider's own message; a *Denied has more details. When ctx ends, a method soon returns an
// error that wraps ctx's.
type Provider interface {
	// Places returns the places in the config, in its order, without contacting a host. For a queue it returns one
	// place for each job that may be in it at a time, at most n. Their texts are distinct, so that an error of one
	// place does not affect another.
	Places(n int) []Place

	// Check asks each host, or the service, whether a job could start now. It costs nothing. An unreachable host is a
	// Host with Err set, not an error.
	Check(ctx context.Context) ([]Host, error)

	// Submit sends the files that are missing on the host, and starts or queues the job. After it returns, the job
	// survives the end of this process. After an error nothing is left running. progress, which may be nil, gets the
	// number of bytes sent so far; total counts only missing files.
	Submit(ctx context.Context, job *Job, progress func(sent, total int64)) (Handle, error)

	// Wait writes the job's event stream to w, from byte offset from, and returns when the job has ended and all of the
	// stream is written. It reconnects after a lost connection. It returns Lost if there is reason to believe that the
	// job will write nothing more. An unreachable host or a rejected login is not such a reason: Wait then retries, and
	// returns the *Denied at the latest after the time set in the table, if any; the job still runs then, as it does if
	// ctx ends first. Wait may be called repeatedly, and for a job that has ended. If h has a Key, an exit.json without
	// the agent's signature does not end a job whose agent may be alive, and never counts as Exited.
	Wait(ctx context.Context, h Handle, from int64, w Watcher) (Exit, error)

	// Collect copies the job's log, agent.LogName, and its other files except the stream into the existing folder dst.
	// The job may still be running.
	Collect(ctx context.Context, h Handle, dst string) error

	// Release ends the job and frees all its resources: processes, queue entries, sandboxes, instances, its folder. The
	// files of the bundle may stay for the next job. Release may be called at any time, and repeatedly.
	Release(ctx context.Context, h Handle) error

	// List returns the user's jobs that hold resources of the provider, including jobs of other clients. It returns the
	// jobs that it found even with an error.
	List(ctx context.Context) ([]Handle, error)

	// Close closes connections. Jobs continue.
	Close() error
}

// A Host is one line of `fisub remote hosts`.
type Host struct {
	Name   string `json:"name"`
	State  string `json:"state"`            // "ready", "busy", "down", or the queue's own word
	Detail string `json:"detail,omitempty"` // "2 x NVIDIA B200, driver 580.95"
	Err    error  `json:"-"`
}

// A LocalError is an error of this machine, not of the host, such as an unreadable file of the bundle; sending is not
// retried. A *fs.PathError alone is ambiguous: a broken pipe to ssh gives one too.
type LocalError struct{ Err error }

func (e *LocalError) Error() string { return e.Err.Error() }
func (e *LocalError) Unwrap() error { return e.Err }

// Local wraps err in a LocalError. It returns nil and io.EOF unchanged.
func Local(err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	return &LocalError{Err: err}
}

// A Denied is the error of a provider or host that rejects a job.
type Denied struct {
	// Code is "credentials", "host-key", "unreachable", "no-such", "quota", "capacity", "no-driver", "old-driver", "arch",
	// "disk", "limit" or "image".
	Code     string
	Provider string // name of the table, such as "lab"
	Host     string // "" if the error is not about one host
	Text     string // in the provider's own words
	Hint     string // how to fix it
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

// CodeOf returns the Code of the *Denied in err's chain, or "".
func CodeOf(err error) string {
	denied, ok := errors.AsType[*Denied](err)
	if !ok {
		return ""
	}
	return denied.Code
}

// Sleep waits for d. If ctx ends first, it returns ctx's error.
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
