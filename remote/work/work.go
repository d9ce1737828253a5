// Package work uses the work folder described in package agent through a host.Host. It is for providers with direct
// access to hosts: it uploads a job's files, starts the agent, follows the event stream and cleans up. It neither
// chooses hosts nor handles queues.
package work

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"runtime"
	"strconv"
	"strings"
	"time"

	"fisub/internal/plain"
	"fisub/remote"
	"fisub/remote/agent"
	"fisub/remote/follow"
	"fisub/remote/host"
)

// A Folder is the work folder of a user on one host.
type Folder struct {
	Host    host.Host
	Name    string             // of the host in places and errors; "" if there is only one
	Dir     string             // as in the table: absolute, or relative to the home folder with or without "~/"
	Away    time.Duration      // a host that has answered is given up after being unreachable for this long
	Check   func(*Facts) error // returns an error if files must not be sent; may be nil
	Pack    bool               // compress uploads that get smaller
	Given   bool               // the user does not control the owner and mode of the folder, as in a pod
	Storage bool               // jobs do not run here: programs need not be able to
	Move    string             // how to choose another Dir; "" means with the key workdir

	sending chan struct{} // holds a token while no Send is running
}

// New returns a Folder. It does not contact the host.
func New(h host.Host, name, dir string) *Folder {
	f := &Folder{Host: h, Name: name, Dir: dir, sending: make(chan struct{}, 1)}
	f.sending <- struct{}{}
	return f
}

// Facts describe a host.
type Facts struct {
	System string // "Linux x86_64"
	Root   string // the work folder, absolute
	Free   int64  // bytes in Root; 0 if unknown
	Inodes int64  // free in Root; -1 if unknown
	gzip   bool   // gzip is installed
}

// CheckArch returns a Folder.Check that rejects hosts, called what in its error, on which this fisub cannot run.
func CheckArch(what, hint string) func(*Facts) error {
	want := "Linux " + map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]
	return func(f *Facts) error {
		if f.System == want {
			return nil
		}
		return &remote.Denied{Code: "arch", Hint: hint,
			Text: fmt.Sprintf("the %s is %.60s, but this fisub is for %s", what, f.System, want)}
	}
}

func control(s string) bool {
	return strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f })
}

// shell runs a script with the positional parameters args.
func shell(ctx context.Context, h host.Host, script string, args []string, in io.Reader, out io.Writer) error {
	err := h.Run(ctx, host.Shell(script, args...), in, out)
	if failed, ok := errors.AsType[*host.ExitError](err); ok && failed.Stderr != "" {
		failed.Name = "" // stderr already names the command that failed
	}
	return err
}

// barred is the exit status of probe if the mode of the user's own folder denies access.
const barred = 45

// makeRoom is the hint for a full disk. df -h alone shows free space even if all inodes are used.
const makeRoom = "free space (df -h and df -i show bytes and inodes), or set workdir to a larger disk"

// probe prints facts about the host, a word and its value on each line, and then the output of df. If $2 is set it
// creates the folder $1; otherwise it describes the nearest parent that exists.
const probe = `umask 077; echo "system $(uname -sm)"; echo "uid $(id -u)"; command -v gzip >/dev/null && echo gzip yes
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

// Prepare creates the folder if necessary and returns facts about the host. Since programs are run from the store, it
// rejects a folder in which they cannot run or that others can change.
func (f *Folder) Prepare(ctx context.Context) (*Facts, error) {
	return f.probe(ctx, probe+"; true", "make", nil, nil)
}

// Inspect is Prepare without creating the folder: the facts may be about its nearest existing parent.
func (f *Folder) Inspect(ctx context.Context) (*Facts, error) {
	return f.probe(ctx, probe+"; true", "", nil, nil)
}

// probe runs a script that starts with the const probe. It passes lines after the first empty line to rest.
func (f *Folder) probe(ctx context.Context, script, how string, in io.Reader, rest func(line string)) (*Facts, error) {
	out := &plain.Buffer{Limit: 4 << 20}
	err := shell(ctx, f.Host, script, []string{strings.TrimPrefix(f.Dir, "~/"), how}, in, out)
	failed, _ := errors.AsType[*host.ExitError](err)
	switch {
	case failed != nil && failed.Status == host.NotFound:
		return nil, &remote.Denied{Code: "no-such", Text: failed.Error(),
			Hint: "PATH on the host must contain the folders of the usual commands: " +
				"check the files that set it, such as .bashrc"}
	case failed != nil && failed.Status == barred:
		return nil, &remote.Denied{Code: "disk", Text: failed.Error() + ": no permission",
			Hint: "on the host: chmod u+rwx " + failed.Error()}
	case failed != nil && strings.Contains(failed.Stderr, "No space left on device"):
		return nil, &remote.Denied{Code: "disk", Text: "making " + f.Dir + ": " + failed.Error(), Hint: makeRoom}
	case failed != nil:
		return nil, &remote.Denied{Code: "disk", Text: "making " + f.Dir + ": " + failed.Error(),
			Hint: cmp.Or(f.Move, "set workdir") + " to a writable folder"}
	case err != nil:
		return nil, err
	}
	facts, last := &Facts{Inodes: -1}, ""
	values := map[string]string{}
	var folders [][]string
	lines, more, _ := strings.Cut(out.String(), "\n\n")
	for line := range strings.Lines(lines) {
		last = strings.TrimSuffix(line, "\n")
		word, value, _ := strings.Cut(last, " ")
		if fields := strings.SplitN(value, " ", 5); word == "folder" && len(fields) == 5 && !f.Given {
			folders = append(folders, fields)
		} else if values[word] == "" {
			values[word] = value
		}
	}
	facts.System, facts.Root, facts.gzip = values["system"], path.Clean(values["root"]), values["gzip"] != ""
	if facts.System == "" || !path.IsAbs(facts.Root) || control(facts.Root) {
		return nil, &remote.Denied{Code: "no-such", Text: fmt.Sprintf("it does not respond like a Unix host: %.200q", out),
			Hint: "set workdir to an absolute path"}
	}
	if fields := strings.Fields(last); len(fields) > 3 {
		kib, _ := strconv.ParseInt(fields[3], 10, 64)
		facts.Free = kib << 10
	}
	if free, total, _ := strings.Cut(values["inodes"], " "); total != "" && total != "0" {
		facts.Inodes, _ = strconv.ParseInt(free, 10, 64)
	}
	for _, fields := range folders {
		if err := private(path.Join(facts.Root, fields[4]), values["uid"], fields); err != nil {
			return nil, err
		}
	}
	if values["ran"] == strconv.Itoa(host.NotRunnable) && !f.Storage {
		return nil, &remote.Denied{Code: "disk", Text: "programs cannot run in " + facts.Root,
			Hint: "set workdir to a folder on another disk; this one may be mounted noexec"}
	}
	for line := range strings.Lines(more) {
		rest(line)
	}
	return facts, nil
}

// private rejects a folder that others may change. stat has the owner's number, the mode, the owner and the group. A
// group named like the owner counts as private.
func private(name, uid string, stat []string) error {
	mode, err := strconv.ParseUint(stat[1], 8, 32)
	refuse := func(text, hint string) error {
		return &remote.Denied{Code: "disk", Text: name + " " + text + ", who could run programs as you", Hint: hint}
	}
	switch {
	case err != nil:
		return fmt.Errorf("%s: mode %.20q", name, stat[1])
	case stat[0] != uid:
		return refuse("belongs to "+plain.Brief(stat[2], 50), "set workdir to your own folder")
	case mode&0o002 != 0, mode&0o020 != 0 && stat[2] != stat[3]:
		return refuse("can be changed by others", "on the host: chmod go-w "+name)
	}
	return nil
}

// begin creates the job's folder $1 with the description from stdin. Then it runs the remaining arguments, if any: they
// start an agent, which must leave its state there. If a step fails, for example because the client died and the
// description is incomplete, it deletes the folder.
const begin = `umask 077; dir=$1; shift; mkdir -- "$dir" || exit
began() { [ $# -eq 0 ] || { "$@" && {
[ -e "$dir/` + agent.StateName + `" ] || { echo the agent did not start >&2; false; }; }; }; }
{ cat >"$dir/.job" && mv -- "$dir/.job" "$dir/` + agent.JobName + `" && began "$@"; } || {
s=$?; rm -rf -- "$dir"; exit $s; }`

// Begin creates the folder of a job below the root returned by Send, and runs command, if any. If the host becomes
// unreachable, the folder may exist despite the error.
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
		// The kernel runs no file that any process, such as one being forked, has open for writing.
		if remote.Sleep(ctx, 50*time.Millisecond) != nil {
			return err
		}
	}
}

// Submit sends the missing files and starts the agent. After an error nothing is left running.
func (f *Folder) Submit(ctx context.Context, job *remote.Job, progress func(sent, total int64)) (*FolderJob, error) {
	program, err := job.Program()
	if err != nil {
		return nil, err
	}
	var j *FolderJob
	for again := false; ; again = true {
		fits := func(facts *Facts) error { return f.fits(ctx, facts, job, program.SHA256) }
		facts, err := f.Send(ctx, job.Files, progress, fits)
		if err != nil {
			return nil, err
		}
		j = &FolderJob{Host: f.Host, ID: job.ID, Place: job.Place, Work: facts.Root, Program: program.SHA256}
		if err = f.Begin(ctx, j, job, j.program(), "agent", "start", j.Dir()); err == nil {
			return j, nil
		}
		if again || !errors.As(err, new(*host.ExitError)) || !f.Heal(ctx, facts, job.Files) {
			return nil, follow.Undo(ctx, err, j.Free)
		}
	}
}

// Place sends the missing files and creates the job's folder. Something else starts the agent; the program has its hash
// then. After an error nothing is left of the folder.
func (f *Folder) Place(ctx context.Context, job *remote.Job, progress func(sent, total int64)) (*FolderJob, error) {
	program, err := job.Program()
	if err != nil {
		return nil, err
	}
	facts, err := f.Send(ctx, job.Files, progress, nil)
	if err == nil && f.Heal(ctx, facts, []remote.File{program}) {
		facts, err = f.Send(ctx, job.Files, progress, nil)
	}
	if err != nil {
		return nil, err
	}
	j := &FolderJob{Host: f.Host, ID: job.ID, Place: job.Place, Work: facts.Root, Program: program.SHA256}
	if err := f.Begin(ctx, j, job); err != nil {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		defer cancel()
		return nil, errors.Join(err, j.Remove(clean))
	}
	return j, nil
}

// heal reads file names, deletes those in folder $1 whose hash differs from their name, and prints them.
const heal = `cd -- "$1" && while read -r name; do
[ ! -e "$name" ] || [ "$(sha256sum <"$name")" = "$name  -" ] || { rm -f -- "$name"; echo "$name"; }; done; true`

// Heal deletes damaged files from the store, as after a crash of the host, and reports whether there were any. Send
// uploads them again.
func (f *Folder) Heal(ctx context.Context, facts *Facts, files []remote.File) bool {
	var names strings.Builder
	for _, file := range files {
		fmt.Fprintln(&names, file.SHA256)
	}
	removed := &plain.Buffer{Limit: 1}
	err := shell(ctx, f.Host, heal, []string{agent.Store(facts.Root)}, strings.NewReader(names.String()), removed)
	return err == nil && len(removed.Bytes()) > 0
}

// maxJob limits the bytes read of a job's description.
const maxJob = 16 << 20

// list prints the name and the description of each job's folder, one job per line.
var list = `cd -- "$1" 2>/dev/null || exit 0; for d in * ` + agent.FreePrefix + `*; do [ -d "$d" ] || continue
printf '%s ' "$d"
head -c ` + strconv.Itoa(maxJob) + ` -- "$d/` + agent.JobName + `" 2>/dev/null | tr -d '\n'; echo; done`

// maxList limits the bytes read of all descriptions together.
const maxList = 256 << 20

// List returns the jobs that have a folder, sorted by id, and the root of the work folder.
func (f *Folder) List(ctx context.Context) (all []*FolderJob, root string, err error) {
	facts, err := f.Prepare(ctx)
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
		_ = json.Unmarshal([]byte(text), &job) // jobs with a truncated description are listed too
		program, _ := job.Program()
		all = append(all, &FolderJob{Host: f.Host, ID: id, Place: job.Place, Work: facts.Root, Program: program.SHA256})
	}
	return all, facts.Root, nil
}
