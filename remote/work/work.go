// Package work is the work folder on a host, as package agent describes it, behind a host.Host: what a provider does
// with a host that it reaches. It brings a job's files there, starts the agent, follows the event stream and frees what
// is left. It is not for choosing a host, nor for queues.
package work

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"strconv"
	"strings"
	"time"

	"fisub/internal/plain"
	"fisub/remote"
	"fisub/remote/agent"
	"fisub/remote/host"
)

// A Folder is the work folder of a user on one host.
type Folder struct {
	Host  host.Host
	Name  string             // of the host in places and errors; "" where there is but one
	Dir   string             // as the table has it: absolute, or below the home folder, also as "~/..."
	Away  time.Duration      // a host that has answered is lost when it was out of reach for longer
	Check func(*Facts) error // whether files may be sent there; may be nil
	Pack  bool               // what is sent is compressed on the way, where that helps
	Given bool               // whose the folder is, and who may write to it, the user does not choose, as in a pod

	sending chan struct{} // holds a token while nobody sends
}

// New makes a Folder. Nothing is asked.
func New(h host.Host, name, dir string) *Folder {
	f := &Folder{Host: h, Name: name, Dir: dir, sending: make(chan struct{}, 1)}
	f.sending <- struct{}{}
	return f
}

// Facts are what a host tells of itself.
type Facts struct {
	System string // "Linux x86_64"
	Root   string // the work folder, absolute
	Free   int64  // bytes there; 0 where it does not say
	Inodes int64  // that are free there; -1 where it does not say
	gzip   bool   // there is the program
}

func control(s string) bool {
	return strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f })
}

// shell runs a script, whose $1, $2, ... are args.
func shell(ctx context.Context, h host.Host, script string, args []string, in io.Reader, out io.Writer) error {
	err := h.Run(ctx, host.Shell(script, args...), in, out)
	if failed, ok := errors.AsType[*host.ExitError](err); ok && failed.Stderr != "" {
		failed.Name = "" // its words name what failed
	}
	return err
}

// barred is the status of look for a folder of the user's own that its mode does not let the user in.
const barred = 45

// makeRoom is the hint of an error of a full disk: of one without free inodes df -h says that there is room.
const makeRoom = "make room (df -h and df -i show bytes and inodes), or set workdir to a larger disk"

// look makes the folder $1, where there is a $2, and tells of the host: a word and its value in each line. The last
// lines are those of df. Without $2 it makes nothing, and tells of the next folder above that is there.
const look = `umask 077; echo "system $(uname -sm)"; echo "uid $(id -u)"; command -v gzip >/dev/null && echo gzip yes
may() { [ ! -d "$1" ] || [ ! -O "$1" ] || [ -r "$1" -a -w "$1" -a -x "$1" ] || { echo "$1" >&2; exit 45; }; }
dir=$1; case $dir in /*) ;; *) cd || exit ;; esac
may "$dir"; may "$dir/store"; may "$dir/jobs"
[ -z "$2" ] || mkdir -p -m 700 -- "$dir" "$dir/store" "$dir/jobs" || exit
while [ ! -d "$dir" ]; do dir=$(dirname -- "$dir"); done; cd -- "$dir" || exit
[ -w . ] || { echo "$dir: it is not writable" >&2; exit 1; }
echo "root $(pwd)"
stat -fc 'inodes %d %c' . 2>/dev/null
[ "$dir" != "$1" ] || stat -Lc 'folder %u %a %U %G %n' . store jobs 2>/dev/null
t=store/.try-$$; [ ! -d store ] || {
echo '#!/bin/sh' >"$t" && chmod 700 "$t" && { "$t" </dev/null; ran=$?; }; } 2>/dev/null; rm -f "$t"
[ -z "$ran" ] || echo "ran $ran" || exit
df -Pk .`

// Look asks the host what it is, and makes the folder. One in which programs cannot run, or that others than the user
// can change, is refused: what lies in its store is run.
func (f *Folder) Look(ctx context.Context) (*Facts, error) {
	return f.look(ctx, look+"; true", "make", nil, nil)
}

// See is Look, which makes nothing: where the folder is not there it tells of the next one above.
func (f *Folder) See(ctx context.Context) (*Facts, error) {
	return f.look(ctx, look+"; true", "", nil, nil)
}

// look runs the script, which begins with look, and takes what that says; the rest, behind an empty line, is for rest.
func (f *Folder) look(ctx context.Context, script, how string, in io.Reader, rest func(line string)) (*Facts, error) {
	out := &plain.Buffer{Limit: 4 << 20}
	err := shell(ctx, f.Host, script, []string{strings.TrimPrefix(f.Dir, "~/"), how}, in, out)
	failed, _ := errors.AsType[*host.ExitError](err)
	switch {
	case failed != nil && failed.Status == host.NotFound:
		return nil, &remote.Denied{Code: "no-such", Text: failed.Error(),
			Hint: "PATH on the host must name the folders of the usual commands: look at what sets it there, such as .bashrc"}
	case failed != nil && failed.Status == barred:
		return nil, &remote.Denied{Code: "disk", Text: failed.Error() + ": its mode keeps you out",
			Hint: "on the host: chmod u+rwx " + failed.Error()}
	case failed != nil && strings.Contains(failed.Stderr, "No space left on device"):
		return nil, &remote.Denied{Code: "disk", Text: "making " + f.Dir + ": " + failed.Error(), Hint: makeRoom}
	case failed != nil:
		return nil, &remote.Denied{Code: "disk", Text: "making " + f.Dir + ": " + failed.Error(),
			Hint: "set workdir to a folder that you may write to"}
	case err != nil:
		return nil, err
	}
	facts, last := &Facts{Inodes: -1}, ""
	said := map[string]string{}
	var folders [][]string
	told, more, _ := strings.Cut(out.String(), "\n\n")
	for line := range strings.Lines(told) {
		last = strings.TrimSuffix(line, "\n")
		word, value, _ := strings.Cut(last, " ")
		if fields := strings.SplitN(value, " ", 5); word == "folder" && len(fields) == 5 {
			folders = append(folders, fields)
		} else if said[word] == "" {
			said[word] = value
		}
	}
	facts.System, facts.Root, facts.gzip = said["system"], path.Clean(said["root"]), said["gzip"] != ""
	if facts.System == "" || !path.IsAbs(facts.Root) || control(facts.Root) {
		return nil, &remote.Denied{Code: "no-such", Text: fmt.Sprintf("it does not answer as a Unix host: %.200q", out),
			Hint: "set workdir to an absolute path"}
	}
	if fields := strings.Fields(last); len(fields) > 3 {
		kib, _ := strconv.ParseInt(fields[3], 10, 64)
		facts.Free = kib << 10
	}
	if free, total, _ := strings.Cut(said["inodes"], " "); total != "" && total != "0" {
		facts.Inodes, _ = strconv.ParseInt(free, 10, 64)
	}
	for _, fields := range folders {
		if f.Given {
			break
		}
		if err := private(path.Join(facts.Root, fields[4]), said["uid"], fields); err != nil {
			return nil, err
		}
	}
	if said["ran"] == strconv.Itoa(host.NotRunnable) {
		return nil, &remote.Denied{Code: "disk", Text: "programs cannot run from " + facts.Root,
			Hint: "set workdir to a folder on another disk: this one may be mounted noexec"}
	}
	for line := range strings.Lines(more) {
		rest(line)
	}
	return facts, nil
}

// private refuses a folder that others may change: stat has told its owner's number, its mode, its owner and its group.
// A group with its user's name is that user's alone.
func private(name, uid string, stat []string) error {
	mode, err := strconv.ParseUint(stat[1], 8, 32)
	refuse := func(text, hint string) error {
		return &remote.Denied{Code: "disk", Text: name + " " + text + ", who could run programs as you", Hint: hint}
	}
	switch {
	case err != nil:
		return fmt.Errorf("%s: mode %.20q", name, stat[1])
	case stat[0] != uid:
		return refuse("belongs to "+plain.Brief(stat[2], 50), "set workdir to a folder of your own")
	case mode&0o002 != 0, mode&0o020 != 0 && stat[2] != stat[3]:
		return refuse("can be changed by others", "on the host: chmod go-w "+name)
	}
	return nil
}

// begin makes the job's folder $1 with the description on stdin, and runs what else there is: the start of an agent,
// which leaves its state there. Of a client that dies meanwhile the host may have half of the description, or none: the
// folder goes with it.
const begin = `umask 077; dir=$1; shift; mkdir -- "$dir" || exit
began() { [ $# -eq 0 ] || { "$@" && {
[ -e "$dir/` + agent.StateName + `" ] || { echo the agent did not start >&2; false; }; }; }; }
{ cat >"$dir/.job" && mv -- "$dir/.job" "$dir/` + agent.JobName + `" && began "$@"; } || {
s=$?; rm -rf -- "$dir"; exit $s; }`

// Begin makes the folder of a job below the root that Send gave, and runs command there, where there is one. After an
// error the folder may be there all the same, where the host cannot be reached.
func (f *Folder) Begin(ctx context.Context, j *FolderJob, job *remote.Job, command ...string) error {
	text, err := json.Marshal(job)
	if err != nil {
		return err
	}
	for try := 1; ; try++ {
		err := shell(ctx, f.Host, begin, append([]string{j.Dir()}, command...), bytes.NewReader(text), nil)
		var failed *host.ExitError
		if !errors.As(err, &failed) || failed.Status != host.NotRunnable || try == 10 {
			return err
		}
		// As long as a process that is just being forked has a file open for writing, the kernel refuses to run it.
		if remote.Sleep(ctx, 50*time.Millisecond) != nil {
			return err
		}
	}
}

// Submit sends what the host lacks and starts the job's agent there. On an error nothing is left running.
func (f *Folder) Submit(ctx context.Context, job *remote.Job, progress func(sent, total int64)) (*FolderJob, error) {
	program, err := job.Program()
	if err != nil {
		return nil, err
	}
	var j *FolderJob
	for again := false; ; again = true {
		fits := func(facts *Facts) error { return f.fits(ctx, facts, job, program.SHA256) }
		facts, err := f.sendAll(ctx, job.Files, progress, fits)
		if err != nil {
			return nil, err
		}
		j = &FolderJob{Host: f.Host, ID: job.ID, Place: job.Place, Work: facts.Root, Program: program.SHA256}
		if err = f.Begin(ctx, j, job, j.program(), "agent", "start", j.Dir()); err == nil {
			return j, nil
		}
		if again || !errors.As(err, new(*host.ExitError)) || !f.Heal(ctx, facts, job.Files) {
			return nil, f.undo(ctx, j, err)
		}
	}
}

// heal removes of the files in folder $1 that it reads the names of those that are not what their names say, and names
// them.
const heal = `cd -- "$1" && while read -r name; do
[ ! -e "$name" ] || [ "$(sha256sum <"$name")" = "$name  -" ] || { rm -f -- "$name"; echo "$name"; }; done; true`

// Heal removes what is damaged of the files in the store, as after a crash of the host, and tells whether there was
// something: Send sends it again.
func (f *Folder) Heal(ctx context.Context, facts *Facts, files []remote.File) bool {
	var names strings.Builder
	for _, file := range files {
		fmt.Fprintln(&names, file.SHA256)
	}
	removed := &plain.Buffer{Limit: 1}
	err := shell(ctx, f.Host, heal, []string{agent.Store(facts.Root)}, strings.NewReader(names.String()), removed)
	return err == nil && len(removed.Bytes()) > 0
}

// undo ends a job whose start has failed with err. Whether it runs is not known.
func (f *Folder) undo(ctx context.Context, j *FolderJob, err error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	for {
		left := j.Free(ctx)
		if left == nil {
			return err
		}
		if remote.Sleep(ctx, time.Second) != nil {
			return fmt.Errorf("%w; the job may run: %w", err, left)
		}
	}
}

// maxJob bounds what is read of a job's description.
const maxJob = 16 << 20

// list gives the name of each job's folder, and what its description says, a line each.
var list = `cd -- "$1" 2>/dev/null || exit 0; for d in * ` + agent.FreePrefix + `*; do [ -d "$d" ] || continue
printf '%s ' "$d"
head -c ` + strconv.Itoa(maxJob) + ` -- "$d/` + agent.JobName + `" 2>/dev/null | tr -d '\n'; echo; done`

// maxList bounds what is read of all descriptions of jobs.
const maxList = 256 << 20

// List gives the jobs that have a folder, in the order of their ids, and the root of all of them.
func (f *Folder) List(ctx context.Context) (all []*FolderJob, root string, err error) {
	facts, err := f.Look(ctx)
	if err != nil {
		return nil, "", err
	}
	out := &plain.Buffer{Limit: maxList}
	if err := shell(ctx, f.Host, list, []string{agent.Jobs(facts.Root)}, nil, out); err != nil {
		return nil, "", err
	}
	for line := range strings.Lines(out.String()) {
		id, text, _ := strings.Cut(strings.TrimSpace(line), " ")
		if id = strings.TrimPrefix(id, agent.FreePrefix); !remote.ValidID(id) {
			continue
		}
		job := remote.Job{Place: remote.Place{GPU: -1}}
		_ = json.Unmarshal([]byte(text), &job) // one that was cut off is listed all the same
		program, _ := job.Program()
		all = append(all, &FolderJob{Host: f.Host, ID: id, Place: job.Place, Work: facts.Root, Program: program.SHA256})
	}
	return all, facts.Root, nil
}
