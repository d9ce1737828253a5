package work

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"path/filepath"
	"strconv"

	"fisub/internal/cache"
	"fisub/internal/plain"
	"fisub/remote"
	"fisub/remote/agent"
	"fisub/remote/follow"
	"fisub/remote/host"
)

// A FolderJob is a job in a work folder. Its JSON is the Data of its handle.
type FolderJob struct {
	Host    host.Host    `json:"-"`
	ID      string       `json:"-"`
	Place   remote.Place `json:"-"`                 // from its description or its handle
	Key     string       `json:"-"`                 // Handle.Key
	Work    string       `json:"work"`              // the work folder, absolute
	Program string       `json:"program,omitempty"` // hash of the agent; "" if unknown
	Number  string       `json:"number,omitempty"`  // in a queue; "" if unknown or not queued
	Cluster string       `json:"cluster,omitempty"` // if one queue serves several clusters; "" for the host's own
}

// Valid reports whether a job from a handle is well-formed: Free deletes the paths that it names.
func (j *FolderJob) Valid() bool {
	return remote.ValidID(j.ID) && path.IsAbs(j.Work) && path.Clean(j.Work) == j.Work && !control(j.Work) &&
		(j.Program == "" || remote.ValidHash(j.Program))
}

// Handle returns the job's handle for that kind of provider.
func (j *FolderJob) Handle(kind string) remote.Handle {
	return remote.NewHandle(kind, j.ID, j.Place, j)
}

// Dir returns the job's folder.
func (j *FolderJob) Dir() string { return agent.JobDir(j.Work, j.ID) }

func (j *FolderJob) program() string { return agent.Stored(j.Work, j.Program) }

// noJob is the exit status of scripts that cannot find the job's folder.
const noJob = 44

// tail prints a newline when the host answers, and then the stream of the job in folder $1 from byte $3. If the program
// $2 exits with 0 before the job has ended, it is damaged, and tail fails.
var tail = fmt.Sprintf(`[ -d "$1" ] || exit %d; echo; "$2" agent tail "$1" --from "$3"; s=$?
if [ $s -eq 0 ] && [ -d "$1" ] && [ ! -e "$1/%s" ]; then echo the program of the agent is damaged >&2; exit 1; fi
exit $s`,
	noJob, agent.ExitName)

// Status implements follow.Source: the host has no scheduler.
func (j *FolderJob) Status(context.Context) (follow.Status, error) { return follow.Status{}, nil }

// Read implements follow.Source. The job is running once the host answers.
func (j *FolderJob) Read(ctx context.Context, from int64, w remote.Watcher) (follow.Part, error) {
	err := shell(ctx, j.Host, tail, []string{j.Dir(), j.program(), strconv.FormatInt(from, 10)}, nil, &answer{w: w})
	if failed, ok := errors.AsType[*host.ExitError](err); ok && failed.Status != noJob {
		return follow.Absent, &follow.AgentError{Err: failed}
	} else if err != nil && !ok {
		return follow.Absent, err
	}
	return follow.Whole, nil
}

// chunk is the most bytes read at once.
const chunk = 4 << 20

// Written is a follow.Source's Read that does not need the agent: it writes what is in the folder.
func (j *FolderJob) Written(ctx context.Context, from int64, w io.Writer) (follow.Part, error) {
	n, err := host.Read(ctx, j.Host, path.Join(j.Dir(), agent.EventsName), from, chunk, w)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return follow.Absent, nil
	case n == chunk:
		return follow.Some, err
	}
	return follow.All, err
}

// Lost implements follow.Source.
func (j *FolderJob) Lost(context.Context) (exit remote.Exit, sure bool, err error) {
	return remote.Exit{End: remote.Cancelled, Text: "the job's folder is gone"}, true, nil
}

// An answer passes on the output of the script tail.
type answer struct {
	w    remote.Watcher
	came bool // the host's newline
}

func (a *answer) Write(p []byte) (n int, err error) {
	rest := p
	if !a.came && len(p) > 0 {
		a.came, rest = true, p[1:]
		a.w.State(remote.Stage{Phase: remote.Running})
	}
	if len(rest) > 0 {
		_, err = a.w.Write(rest)
	}
	return len(p), err
}

// Exit returns the end of the job. It is nil if it is not written yet, or the folder is gone.
func (j *FolderJob) Exit(ctx context.Context) (*remote.Exit, error) {
	text, err := j.read(ctx, agent.ExitName, 64<<10)
	if text == nil || err != nil {
		return nil, err
	}
	exit := agent.ParseExit(text, remote.Seal{Key: j.Key, Job: j.ID})
	return &exit, nil
}

// read returns the beginning of a file in the job's folder, or nil if it does not exist.
func (j *FolderJob) read(ctx context.Context, name string, limit int64) ([]byte, error) {
	text := bytes.NewBuffer([]byte{})
	_, err := host.Read(ctx, j.Host, path.Join(j.Dir(), name), 0, limit, text)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return text.Bytes(), err
}

// maxLog limits the size of each collected file.
const maxLog = 16 << 20

// Collect copies the log and the named files, if they exist, into the folder dst.
func (j *FolderJob) Collect(ctx context.Context, dst string, names ...string) error {
	for _, name := range append([]string{agent.LogName}, names...) {
		if err := j.collect(ctx, name, filepath.Join(dst, name)); err != nil {
			return err
		}
	}
	return nil
}

func (j *FolderJob) collect(ctx context.Context, name, to string) error {
	var read error
	err := cache.Write(to, 0o644, func(f io.Writer) error {
		_, read = host.Read(ctx, j.Host, path.Join(j.Dir(), name), 0, maxLog, localWriter{f})
		return read
	})
	switch {
	case errors.Is(read, fs.ErrNotExist):
		return nil
	case read != nil:
		return read
	}
	return remote.Local(err)
}

type localWriter struct{ w io.Writer }

func (l localWriter) Write(p []byte) (int, error) {
	n, err := l.w.Write(p)
	return n, remote.Local(err)
}

// free lets the agent $2 end the job in folder $1 and remove it, or removes $3, the renamed folder of a killed client.
// An agent that cannot exits with 1. If the agent's program is missing or damaged, the shell removes the folder of a
// job that never started or has ended, or whose agent on this machine is dead.
const free = `left() { [ -e "$1" ] || [ -e "$3" ]; }
if [ -s "$2" ] && [ -x "$2" ]; then "$2" agent free "$1"; s=$?
if [ $s -eq 1 ] && [ ! -e "$1" ]; then rm -rf -- "$3"; s=0; fi
if [ $s -eq 1 ] || ! left "$@"; then exit $s; fi; fi
state=$1/` + agent.StateName + `; if [ -e "$state" ] && [ ! -e "$1/` + agent.ExitName + `" ]; then
pid=$(sed -n 's/.*"pid":\([0-9]*\).*/\1/p' "$state"); boot=$(cat /proc/sys/kernel/random/boot_id)
if ! grep -qF "\"host\":\"$(uname -n)\"" "$state" || grep -qF "$boot" "$state" && [ -e "/proc/$pid" ]; then
echo the program of the job\'s agent is gone or damaged, and may still run >&2; exit 1; fi; fi
rm -rf -- "$1" "$3"; if left "$@"; then echo "$1 cannot be removed" >&2; exit 1; fi`

// Free ends the job and removes its folder. It may be called repeatedly.
func (j *FolderJob) Free(ctx context.Context) error {
	return shell(ctx, j.Host, free, []string{j.Dir(), j.program(), j.half()}, nil, nil)
}

// Remove removes the folder of a job that has ended.
func (j *FolderJob) Remove(ctx context.Context) error {
	return shell(ctx, j.Host, `rm -rf -- "$@"`, []string{j.Dir(), j.half()}, nil, nil)
}

// half returns the folder that a killed Free leaves.
func (j *FolderJob) half() string { return path.Join(agent.Jobs(j.Work), agent.FreePrefix+j.ID) }

// LastLine returns the last line of a file in the job's folder, or "" if it does not exist.
func (j *FolderJob) LastLine(ctx context.Context, name string) (string, error) {
	text, err := j.read(ctx, name, 64<<10)
	lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	return plain.Brief(string(lines[len(lines)-1]), 300), err
}
