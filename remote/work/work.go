// Package work is the work folder on a host, as package agent describes it, behind a host.Host: what a provider does
// with a host that it reaches. It brings a job's files there, starts the agent, follows the event stream and frees what
// is left. It is not for choosing a host, nor for queues.
package work

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

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

const look = `uname -sm; cd && mkdir -p -m 700 -- "$1" && cd -- "$1" && mkdir -p -m 700 store jobs && pwd && df -Pk .`

// Look asks the host what it is, and makes the folder.
func (f *Folder) Look(ctx context.Context) (*Facts, error) {
	out := &plain.Buffer{Limit: 64 << 10}
	err := shell(ctx, f.Host, look, []string{strings.TrimPrefix(f.Dir, "~/")}, nil, out)
	if failed, ok := errors.AsType[*host.ExitError](err); ok && failed.Status != host.NotFound {
		return nil, &remote.Denied{Code: "disk", Text: "making " + f.Dir + ": " + failed.Error(),
			Hint: "set workdir to a folder that you may write to"}
	} else if err != nil {
		return nil, err
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) < 4 || !path.IsAbs(lines[1]) || control(lines[1]) {
		return nil, &remote.Denied{Code: "no-such", Text: fmt.Sprintf("it does not answer as a Unix host: %.200q", out),
			Hint: "set workdir to an absolute path"}
	}
	facts := &Facts{System: strings.TrimSpace(lines[0]), Root: path.Clean(lines[1])}
	if fields := strings.Fields(lines[len(lines)-1]); len(fields) > 3 {
		kib, _ := strconv.ParseInt(fields[3], 10, 64)
		facts.Free = kib << 10
	}
	return facts, nil
}

// tries is how often Send begins at most where the connection is lost each time: what arrived before is not sent again.
// While the host cannot be reached that does not count.
const tries = 4

// Send brings to the store what it lacks of the files, and gives what the host tells of itself. progress, which may be
// nil, is told how many bytes of total were sent. One call at a time sends, so that the next one finds it there. It
// gets over a connection that is lost, and over a host that is away for no longer than Away.
func (f *Folder) Send(ctx context.Context, files []remote.File, progress func(sent, total int64)) (*Facts, error) {
	select {
	case <-f.sending:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { f.sending <- struct{}{} }()
	var since time.Time // the host, which has answered before, cannot be reached
	answered := false
	for try, wait := 1, 250*time.Millisecond; ; wait = min(2*wait, 5*time.Second) {
		facts, err := f.send(ctx, files, progress)
		answered = answered || facts != nil
		switch {
		case errors.As(err, new(*host.LostError)) && try < tries:
			since = time.Time{}
			try++
		case remote.CodeOf(err) == "unreachable" && answered:
			if since.IsZero() {
				since = time.Now()
			}
			if time.Since(since) > f.Away {
				return nil, err
			}
		default:
			return facts, err
		}
		if err := remote.Sleep(ctx, wait); err != nil {
			return nil, err
		}
	}
}

// room is what must be free on the host beside the files themselves.
const room = 32 << 20

// stored reads hashes, a line each, and gives the sizes of those that the store has. These stay for a job that is begun
// soon; what no job has used for a month goes.
const stored = `cd -- "$1" || exit; names=$(cat); printf '%s\n' "$names" | xargs touch -c --
find . -maxdepth 1 -type f -mtime +` + agent.KeepDays + ` -exec rm -f -- {} +
printf '%s\n' "$names" | xargs stat -c '%s %n' -- 2>/dev/null; true`

func (f *Folder) send(ctx context.Context, files []remote.File, progress func(sent, total int64)) (*Facts, error) {
	facts, err := f.Look(ctx)
	if err == nil && f.Check != nil {
		err = f.Check(facts)
	}
	if err != nil {
		return nil, err
	}
	var names strings.Builder
	for _, file := range files {
		fmt.Fprintln(&names, file.SHA256)
	}
	sizes := &plain.Buffer{Limit: 4 << 20}
	err = shell(ctx, f.Host, stored, []string{agent.Store(facts.Root)}, strings.NewReader(names.String()), sizes)
	if err != nil {
		return facts, err
	}
	have := map[string]bool{}
	for line := range strings.Lines(sizes.String()) {
		have[strings.TrimSpace(line)] = true
	}
	count := &remote.Progress{Tell: progress}
	var lacking []remote.File
	var total int64
	for _, file := range files {
		key := fmt.Sprint(file.Size, " ", file.SHA256)
		if !have[key] {
			lacking = append(lacking, file)
			total += file.Size
		}
		have[key] = true // two names may have the same content
	}
	count.Begin(total)
	if facts.Free > 0 && facts.Free < total+room && len(lacking) > 0 {
		return facts, full(facts, fmt.Sprintf("the bundle and a job take %d MB", (total+room)>>20))
	}
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(4)
	for _, file := range lacking {
		group.Go(func() error { return f.put(gctx, facts.Root, file, count) })
	}
	err = group.Wait()
	if err != nil && ctx.Err() == nil && !errors.As(err, new(*host.LostError)) &&
		!errors.As(err, new(*remote.LocalError)) {
		if now, lookErr := f.Look(ctx); lookErr == nil && now.Free > 0 && now.Free < room {
			err = full(now, err.Error())
		}
	}
	return facts, err
}

func full(facts *Facts, text string) error {
	return &remote.Denied{Code: "disk", Text: fmt.Sprintf("%d MB free in %s: %s", facts.Free>>20, facts.Root, text),
		Hint: "make room, or set workdir to a larger disk"}
}

func (f *Folder) put(ctx context.Context, root string, file remote.File, count *remote.Progress) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	src, err := os.Open(file.Path)
	if err != nil {
		return &remote.LocalError{Err: err}
	}
	defer src.Close()
	return f.Host.Put(ctx, agent.Stored(root, file.SHA256), &source{Checked{R: src, File: file}, src, count}, file.Mode())
}

// Checked reads a file of a bundle from R. It ends with an error that wraps agent.ErrHash where that is not its
// content.
type Checked struct {
	R    io.Reader
	File remote.File
	hash hash.Hash
}

func (c *Checked) Read(p []byte) (int, error) {
	if c.hash == nil {
		c.hash = sha256.New()
	}
	n, err := c.R.Read(p)
	c.hash.Write(p[:n])
	if err == io.EOF {
		if got := hex.EncodeToString(c.hash.Sum(nil)); got != c.File.SHA256 {
			return n, fmt.Errorf("%w: file %s: got %s, want %s", agent.ErrHash, c.File.Name, got, c.File.SHA256)
		}
	}
	return n, err
}

// A source is a file of this machine that is sent. Its errors are LocalErrors.
type source struct {
	Checked
	file  *os.File
	count *remote.Progress
}

func (s *source) Read(p []byte) (int, error) {
	n, err := s.Checked.Read(p)
	s.count.Sent(int64(n))
	return n, remote.Local(err)
}

// Seek goes to an offset from the beginning of the file; what is before it counts as sent.
func (s *source) Seek(offset int64, _ int) (int64, error) {
	s.hash = nil
	if _, err := s.file.Seek(0, io.SeekStart); err != nil {
		return 0, &remote.LocalError{Err: err}
	}
	return io.CopyN(io.Discard, s, offset)
}

// begin makes the job's folder $1 with the description on stdin, and runs what else there is. Of a client that dies
// meanwhile the host may have half of the description, or none: the folder goes with it.
const begin = `umask 077; dir=$1; shift; mkdir -- "$dir" || exit
{ cat >"$dir/.job" && mv -- "$dir/.job" "$dir/` + agent.JobName + `" && "$@"; } || { s=$?; rm -rf -- "$dir"; exit $s; }`

// Begin makes the folder of a job below the root that Send gave, and runs command there, where there is one. After an
// error the folder may be there all the same, where the host cannot be reached.
func (f *Folder) Begin(ctx context.Context, j *Job, job *remote.Job, command ...string) error {
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
func (f *Folder) Submit(ctx context.Context, job *remote.Job, progress func(sent, total int64)) (*Job, error) {
	program, err := job.Program()
	if err != nil {
		return nil, err
	}
	facts, err := f.Send(ctx, job.Files, progress)
	if err != nil {
		return nil, err
	}
	j := &Job{Host: f.Host, ID: job.ID, Place: job.Place, Work: facts.Root, Program: program.SHA256}
	err = f.Begin(ctx, j, job, j.program(), "agent", "start", j.Dir())
	if err == nil {
		return j, nil
	}
	// Whether it runs is not known.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	for {
		left := j.Free(ctx)
		if left == nil {
			return nil, err
		}
		if remote.Sleep(ctx, time.Second) != nil {
			return nil, fmt.Errorf("%w; the job may run: %w", err, left)
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
func (f *Folder) List(ctx context.Context) (all []*Job, root string, err error) {
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
		all = append(all, &Job{Host: f.Host, ID: id, Place: job.Place, Work: facts.Root, Program: program.SHA256})
	}
	return all, facts.Root, nil
}
