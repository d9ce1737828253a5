// Package ssh is the provider of hosts that the user can log in to. It runs the system's OpenSSH, so keys, agents, jump hosts
// and names are those of ~/.ssh/config, and never asks: host keys must be known. Jobs belong to an agent on the host that does
// not need the connection.
package ssh

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/pkg/sftp"
	"golang.org/x/sync/errgroup"

	"fisub/remote"
	"fisub/remote/agent"
)

// Kind is the provider's name in a table.
const Kind = "ssh"

// A Provider runs jobs on hosts over SSH.
type Provider struct {
	name string
	Config
	dir   string // of the sockets
	hosts map[string]*host
}

// New makes the provider of the table [remote.name]. No host is asked.
func New(name string, c Config) (*Provider, error) {
	p := &Provider{name: name, hosts: map[string]*host{}, Config: c}
	for _, h := range p.Hosts {
		p.hosts[h] = &host{table: name, name: h}
	}
	var err error
	if p.dir, err = os.MkdirTemp("", "fisub-"); err != nil {
		return nil, err
	}
	for _, h := range p.hosts {
		h.dir, h.config = p.dir, p.SSHConfig
	}
	return p, nil
}

// Close ends the connections.
func (p *Provider) Close() error {
	var group sync.WaitGroup
	for _, h := range p.hosts {
		group.Go(h.close)
	}
	group.Wait()
	return os.RemoveAll(p.dir)
}

// Places are the GPUs: the first of each host, then the second of each, and so on.
func (p *Provider) Places(n int) (places []remote.Place) {
	for _, gpu := range p.GPUs {
		for _, h := range p.Hosts {
			places = append(places, remote.Place{Host: h, GPU: gpu})
		}
	}
	return places[:min(n, len(places))]
}

// facts are what a host tells of itself.
type facts struct {
	system string // "Linux x86_64"
	work   string // the work folder, absolute
	free   int64  // bytes there
	gpus   []string
}

// machines are the names that uname has for the processors that fisub is built for.
var machines = map[string]string{"amd64": "x86_64", "arm64": "aarch64"}

// probe asks the host who it is and makes the work folder.
func (h *host) probe(ctx context.Context, workdir string, gpus bool) (*facts, error) {
	script := `uname -sm; cd && mkdir -p ` + quote(path.Join(workdir, "store")) + ` ` + quote(path.Join(workdir, "jobs")) + ` && cd ` + quote(workdir) + ` && pwd -P && df -Pk . | tail -n 1`
	if gpus {
		script += `; nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null || true`
	}
	out := answer{left: maxAnswer}
	if err := h.run(ctx, script, nil, &out); err != nil {
		var st *status
		if errors.As(err, &st) {
			return nil, h.denied("disk", "making "+workdir+": "+st.text, "set workdir to a folder that can be written")
		}
		return nil, err
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) < 3 || !path.IsAbs(lines[1]) || !workForm.MatchString(lines[1]) {
		return nil, h.denied("no-such", fmt.Sprintf("it does not answer as a Linux host: %.200q", out.String()), "set workdir to a plain absolute path")
	}
	f := &facts{system: strings.TrimSpace(lines[0]), work: lines[1]}
	if fields := strings.Fields(lines[2]); len(fields) >= 4 {
		kib, err := strconv.ParseInt(fields[3], 10, 64)
		if err == nil {
			f.free = kib << 10
		}
	}
	for _, g := range lines[3:] {
		if g = strings.TrimSpace(g); g != "" && len(f.gpus) < 64 {
			f.gpus = append(f.gpus, g)
		}
	}
	if want := "Linux " + machines[runtime.GOARCH]; f.system != want {
		return nil, h.denied("arch", fmt.Sprintf("it is %.60s, this fisub is for %s", f.system, want), "use a fisub that was built for the host's system")
	}
	return f, nil
}

// Check asks each host.
func (p *Provider) Check(ctx context.Context) ([]remote.Host, error) {
	all := make([]remote.Host, len(p.Hosts))
	var group sync.WaitGroup
	for i, name := range p.Hosts {
		group.Go(func() {
			f, err := p.hosts[name].probe(ctx, p.Workdir, true)
			all[i] = remote.Host{Name: name, State: "ready", Err: err}
			if err != nil {
				all[i].State = "down"
				return
			}
			all[i].Detail = "no NVIDIA GPU"
			if len(f.gpus) > 0 {
				all[i].Detail = fmt.Sprintf("%d x %s", len(f.gpus), strings.Replace(f.gpus[0], ", ", ", driver ", 1))
			}
			all[i].Detail += fmt.Sprintf(", %.1f GB free in %s", float64(f.free)/1e9, f.work)
		})
	}
	group.Wait()
	return all, ctx.Err()
}

// A spot is Handle.Data.
type spot struct {
	Work    string `json:"work"`    // work folder on the host
	Program string `json:"program"` // hash of the agent
}

// tries is how often Submit begins at most where the connection is lost each time: what arrived before is not sent again. While
// the host cannot be reached that does not count.
const tries = 4

// Submit sends what the host lacks and starts an agent there.
func (p *Provider) Submit(ctx context.Context, job *remote.Job, progress func(sent, total int64)) (handle remote.Handle, err error) {
	if err := job.Check(); err != nil {
		return handle, err
	}
	h := p.hosts[job.Place.Host]
	if h == nil {
		return handle, fmt.Errorf("%s: no host %q in the table", p.name, job.Place.Host)
	}
	u := &upload{host: h, job: job, progress: progress, token: rand.Text()}
	for _, f := range job.Files {
		if f.Name == agent.Program {
			u.program = f
		}
	}
	if u.program.Name == "" {
		return handle, fmt.Errorf("job %s: no %s in its bundle", job.ID, agent.Program)
	}
	var since time.Time // the host, which has answered before, cannot be reached
	for try, wait := 1, 250*time.Millisecond; ; wait = min(2*wait, 5*time.Second) {
		err = u.send(ctx, p.Workdir)
		var lost *gone
		var denied *remote.Denied
		switch {
		case errors.As(err, &lost):
			since = time.Time{}
			try++
		case errors.As(err, &denied) && denied.Code == "unreachable" && u.facts != nil:
			if since.IsZero() {
				since = time.Now()
			}
		default:
			try = 0
		}
		if try == 0 || try > tries || !since.IsZero() && time.Since(since) > p.Away {
			break
		}
		if end := pause(ctx, wait); end != nil {
			err = end
			break
		}
	}
	if err != nil {
		u.clean(ctx)
		return handle, h.wrap(err)
	}
	data, err := json.Marshal(spot{u.facts.work, u.program.SHA256})
	if err != nil {
		return handle, err
	}
	text, err := json.Marshal(job)
	if err != nil {
		return handle, err
	}
	handle = remote.Handle{Provider: Kind, Job: job.ID, Place: job.Place, Data: data}
	dir := agent.JobDir(u.facts.work, job.ID)
	// Of a client that dies here the host may have half of the job, and begin when the next one has looked: nothing may be left.
	script := fmt.Sprintf("mkdir %s || exit; { cat >%s/.job && mv %s/.job %s/%s && %s agent start %s; } || { s=$?; rm -rf %s; exit $s; }", dir, dir, dir, dir,
		agent.JobName, agent.Stored(u.facts.work, u.program.SHA256), dir, dir)
	if err := h.run(ctx, script, bytes.NewReader(text), nil); err != nil {
		// Whether it runs is not known: nothing may be left.
		rctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		defer cancel()
		for {
			rerr := p.Release(rctx, handle)
			if rerr == nil {
				break
			}
			if pause(rctx, time.Second) != nil {
				return handle, h.wrap(fmt.Errorf("%w; the job may run: %w", err, rerr))
			}
		}
		return handle, h.wrap(err)
	}
	return handle, nil
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// wrap names the provider and the host in an error that does not.
func (h *host) wrap(err error) error {
	var denied *remote.Denied
	var lost *gone
	switch {
	case err == nil, errors.As(err, &denied):
		return err
	case errors.As(err, &lost):
		return h.denied("unreachable", err.Error(), "ssh "+h.name)
	}
	return fmt.Errorf("%s: %s: %w", h.table, h.name, err)
}

// An upload brings a job's files to a host, over as many connections as it takes.
type upload struct {
	host     *host
	job      *remote.Job
	program  remote.File
	progress func(sent, total int64)
	token    string
	facts    *facts

	mu    sync.Mutex
	sent  int64
	total int64
	temps []string
}

// room is what must be free on the host beside the files themselves.
const room = 32 << 20

func (u *upload) send(ctx context.Context, workdir string) error {
	facts, err := u.host.probe(ctx, workdir, false)
	if err != nil {
		return err
	}
	u.facts = facts
	missing, err := u.missing(ctx)
	if err != nil {
		return err
	}
	u.mu.Lock()
	u.total = 0
	for _, f := range missing {
		u.total += f.Size
	}
	u.sent = 0
	u.mu.Unlock()
	u.tell(0)
	if len(missing) == 0 {
		return nil
	}
	if u.facts.free > 0 && u.facts.free < u.total+room {
		return u.host.denied("disk", fmt.Sprintf("%d MB free in %s, the bundle and a job take %d MB", u.facts.free>>20, u.facts.work, (u.total+room)>>20),
			"make room, or set workdir to a larger disk")
	}
	client, done, err := u.host.sftp(ctx)
	if err != nil {
		return err
	}
	defer done()
	stop := context.AfterFunc(ctx, func() { client.Close() })
	defer stop()
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(4)
	for _, f := range missing {
		group.Go(func() error {
			if err := gctx.Err(); err != nil {
				return err
			}
			return u.put(client, f)
		})
	}
	if err := group.Wait(); err != nil {
		return u.fault(ctx, err)
	}
	// The program may be among what was sent, still under its temporary name.
	program := agent.Stored(u.facts.work, u.program.SHA256)
	var lines strings.Builder
	for _, f := range missing {
		exec := "-"
		if f.Exec {
			exec = "x"
		}
		if f.SHA256 == u.program.SHA256 {
			program = agent.Stored(u.facts.work, u.temp(f))
		}
		fmt.Fprintf(&lines, "%s %s %s\n", u.temp(f), f.SHA256, exec)
	}
	err = u.host.run(ctx, fmt.Sprintf("chmod 700 %s && exec %s agent accept %s", program, program, u.facts.work), strings.NewReader(lines.String()), nil)
	var st *status
	if errors.As(err, &st) {
		if st.code == 126 {
			return u.host.denied("disk", st.text, "programs cannot run from "+u.facts.work+": set workdir to another folder")
		}
		return fmt.Errorf("on arrival: %s", st.text)
	}
	return err
}

func (u *upload) temp(f remote.File) string { return ".up-" + u.token + "-" + f.SHA256 }

// missing gives the files that the host's store lacks, each content once.
func (u *upload) missing(ctx context.Context) (all []remote.File, err error) {
	var ask strings.Builder
	once := map[string]bool{}
	for _, f := range u.job.Files {
		if !once[f.SHA256] {
			fmt.Fprintln(&ask, f.SHA256)
		}
		once[f.SHA256] = true
	}
	program := agent.Stored(u.facts.work, u.program.SHA256)
	out := answer{left: maxAnswer}
	// Without the program there, the shell looks.
	script := fmt.Sprintf(`if [ -x %s ]; then exec %s agent have %s; fi; cd %s && while read -r h; do if [ -f "$h" ]; then touch -c "$h"; else echo "$h"; fi; done`,
		program, program, u.facts.work, agent.Store(u.facts.work))
	if err := u.host.run(ctx, script, strings.NewReader(ask.String()), &out); err != nil {
		return nil, err
	}
	lacks := map[string]bool{}
	in := bufio.NewScanner(&out)
	for in.Scan() {
		lacks[in.Text()] = true
	}
	for _, f := range u.job.Files {
		if lacks[f.SHA256] {
			all = append(all, f)
			delete(lacks, f.SHA256)
		}
	}
	return all, nil
}

// put sends one file, or the rest of it.
func (u *upload) put(client *sftp.Client, f remote.File) error {
	src, err := os.Open(f.Path)
	if err != nil {
		return &remote.LocalError{Err: err}
	}
	defer src.Close()
	name := agent.Stored(u.facts.work, u.temp(f))
	u.mu.Lock()
	u.temps = append(u.temps, name)
	u.mu.Unlock()
	dst, err := client.OpenFile(name, os.O_CREATE|os.O_WRONLY)
	if err != nil {
		return err
	}
	defer dst.Close()
	var at int64
	if st, err := dst.Stat(); err == nil && st.Size() <= f.Size {
		// Writes of a connection that was lost may have left holes near the end.
		at = max(0, st.Size()-8<<20)
	}
	if at > 0 {
		if _, err := src.Seek(at, io.SeekStart); err != nil {
			return &remote.LocalError{Err: err}
		}
		if _, err := dst.Seek(at, io.SeekStart); err != nil {
			return err
		}
		u.tell(at)
	}
	_, err = dst.ReadFromWithConcurrency(&counter{io.LimitReader(src, f.Size-at), u}, 64)
	return errors.Join(err, dst.Close())
}

type counter struct {
	r io.Reader
	u *upload
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	if n > 0 {
		c.u.tell(int64(n))
	}
	if err != nil && !errors.Is(err, io.EOF) {
		err = &remote.LocalError{Err: err}
	}
	return n, err
}

func (u *upload) tell(n int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.sent = min(u.sent+n, u.total)
	if u.progress != nil {
		u.progress(u.sent, u.total)
	}
}

// fault says what an error while sending was: a full disk, a lost connection, or something else.
func (u *upload) fault(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var st *sftp.StatusError
	var local *remote.LocalError
	switch {
	case errors.As(err, &local), errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission): // the latter two are the host's words
		return err
	case errors.As(err, &st):
		f, perr := u.host.probe(ctx, path.Clean(u.facts.work), false)
		if perr == nil && f.free < room {
			return u.host.denied("disk", fmt.Sprintf("%d MB free in %s: %v", f.free>>20, f.work, err), "make room, or set workdir to a larger disk")
		}
		if st.FxCode() == sftp.ErrSSHFxConnectionLost || st.FxCode() == sftp.ErrSSHFxNoConnection {
			return &gone{err.Error()}
		}
		return err
	}
	return &gone{err.Error()}
}

// clean removes what an upload that failed has left, where that is possible.
func (u *upload) clean(ctx context.Context) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.facts == nil || len(u.temps) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 15*time.Second)
	defer cancel()
	_ = u.host.run(ctx, "rm -f "+agent.Store(u.facts.work)+"/.up-"+u.token+"-*", nil, nil)
}

// find gives the host and the folders of a handle.
func (p *Provider) find(h remote.Handle) (*host, string, string, error) {
	var s spot
	if err := json.Unmarshal(h.Data, &s); err != nil || h.Provider != Kind || !remote.ValidID(h.Job) || !path.IsAbs(s.Work) || !workForm.MatchString(s.Work) ||
		path.Clean(s.Work) != s.Work || !remote.ValidHash(s.Program) {
		return nil, "", "", fmt.Errorf("%s: %q is no handle of this provider", p.name, h.Job)
	}
	host := p.hosts[h.Place.Host]
	if host == nil {
		return nil, "", "", &remote.Denied{Code: "no-such", Provider: p.name, Host: h.Place.Host, Text: "not among the table's hosts any more", Hint: "put it back into remote." + p.name + ".hosts"}
	}
	return host, agent.JobDir(s.Work, h.Job), agent.Stored(s.Work, s.Program), nil
}

// noJob is the status of scripts that do not find the job's folder.
const noJob = 44

// Wait follows the job's stream over one connection after the other.
func (p *Provider) Wait(ctx context.Context, handle remote.Handle, from int64, w remote.Watcher) (remote.Exit, error) {
	h, dir, program, err := p.find(handle)
	if err != nil {
		return remote.Exit{}, err
	}
	f := &follower{w: w, at: from}
	var since time.Time // the host cannot be reached
	for wait := 250 * time.Millisecond; ; wait = min(2*wait, 5*time.Second) {
		before := f.at
		f.heard = false
		script := fmt.Sprintf("[ -d %s ] || exit %d; echo ok; exec %s agent tail %s --from %d", dir, noJob, program, dir, f.at)
		err := h.run(ctx, script, nil, f)
		var st *status
		switch {
		case ctx.Err() != nil:
			return remote.Exit{}, fmt.Errorf("%s: %s: %w", p.name, h.name, ctx.Err())
		case f.err != nil:
			return remote.Exit{}, f.err
		case err == nil:
			out := answer{left: maxAnswer}
			err = h.run(ctx, "cat "+dir+"/"+agent.ExitName, nil, &out)
			if err == nil {
				return agent.ParseExit(out.Bytes()), nil
			}
			if errors.As(err, &st) {
				return remote.Exit{End: remote.Cancelled, Text: "the job's folder is gone"}, nil
			}
		case errors.As(err, &st) && st.code == noJob:
			return remote.Exit{End: remote.Cancelled, Text: "the job's folder is gone"}, nil
		case errors.As(err, &st):
			// The host answers, and its agent does not.
			if since.IsZero() {
				since = time.Now()
			}
			if time.Since(since) > 5*time.Second {
				return remote.Exit{End: remote.Lost, Text: "following the job: " + st.text}, nil
			}
		}
		if ctx.Err() != nil {
			return remote.Exit{}, fmt.Errorf("%s: %s: %w", p.name, h.name, ctx.Err())
		}
		if f.heard && !errors.As(err, &st) || f.at > before {
			since, wait = time.Time{}, 250*time.Millisecond
		}
		if since.IsZero() {
			since = time.Now()
		}
		if away := time.Since(since); away > p.Away {
			return remote.Exit{End: remote.Lost, Text: fmt.Sprintf("not reached for %v: %v", away.Round(time.Second), err),
				Hint: "is the host up? its job ends at its limit in any case"}, nil
		}
		w.State(remote.State{Phase: remote.Away, Text: err.Error()})
		if err := pause(ctx, min(wait, max(p.Away-time.Since(since), 50*time.Millisecond))); err != nil {
			return remote.Exit{}, fmt.Errorf("%s: %s: %w", p.name, h.name, err)
		}
	}
}

// A follower counts what it passes on.
type follower struct {
	w     remote.Watcher
	at    int64
	head  string // "ok\n", as far as it has come
	heard bool   // the host has answered on this connection
	err   error  // of w
}

func (f *follower) Write(p []byte) (int, error) {
	n := len(p)
	if !f.heard {
		for len(p) > 0 && f.head != "ok\n" {
			f.head, p = f.head+string(p[:1]), p[1:]
		}
		if f.head != "ok\n" {
			return n, nil
		}
		f.heard, f.head = true, ""
		f.w.State(remote.State{Phase: remote.Running})
	}
	if len(p) > 0 {
		var took int
		took, f.err = f.w.Write(p)
		f.at += int64(took)
		if f.err != nil {
			return took, f.err
		}
	}
	return n, nil
}

// Bounds, in bytes, of what is taken of a host's answers.
const (
	maxAnswer = 2 << 20
	maxLog    = 64 << 20
	maxJobs   = 256 << 20 // all job.json of a host
)

// An answer keeps what a host says, up to left bytes; more of it is an error.
type answer struct {
	bytes.Buffer
	left int
}

func (a *answer) Write(p []byte) (int, error) {
	if a.left -= len(p); a.left < 0 {
		return 0, errors.New("the host's answer is too long")
	}
	return a.Buffer.Write(p)
}

// Collect fetches the log.
func (p *Provider) Collect(ctx context.Context, handle remote.Handle, dst string) error {
	h, dir, _, err := p.find(handle)
	if err != nil {
		return err
	}
	out := answer{left: maxLog}
	err = h.run(ctx, fmt.Sprintf("[ -f %s/%s ] || exit %d; head -c %d %s/%s", dir, agent.LogName, noJob, maxLog, dir, agent.LogName), nil, &out)
	var st *status
	if errors.As(err, &st) && st.code == noJob {
		return h.wrap(fmt.Errorf("job %s: %w", handle.Job, fs.ErrNotExist))
	}
	if err != nil {
		return h.wrap(err)
	}
	return os.WriteFile(filepath.Join(dst, agent.LogName), out.Bytes(), 0o600)
}

// Release ends the job and removes its folder.
func (p *Provider) Release(ctx context.Context, handle remote.Handle) error {
	h, dir, program, err := p.find(handle)
	if err != nil {
		return err
	}
	// Of a job that never began, or has ended, the shell can remove what is left where the agent's program is gone.
	return h.wrap(h.run(ctx, fmt.Sprintf("[ -x %s ] && exec %s agent free %s; "+
		"if [ -e %s/%s ] && [ ! -e %s/%s ]; then echo the agent of the job is gone >&2; exit 1; fi; rm -rf %s %s/%s%s",
		program, program, dir, dir, agent.StateName, dir, agent.ExitName, dir, path.Dir(dir), agent.FreePrefix, path.Base(dir)), nil, nil))
}

// List gives the jobs on all hosts; a host that cannot be reached is an error.
func (p *Provider) List(ctx context.Context) (all []remote.Handle, err error) {
	var group sync.WaitGroup
	handles, faults := make([][]remote.Handle, len(p.Hosts)), make([]error, len(p.Hosts))
	for i, name := range p.Hosts {
		group.Go(func() { handles[i], faults[i] = p.list(ctx, p.hosts[name]) })
	}
	group.Wait()
	for _, h := range handles {
		all = append(all, h...)
	}
	return all, errors.Join(faults...)
}

func (p *Provider) list(ctx context.Context, h *host) (all []remote.Handle, err error) {
	f, err := h.probe(ctx, p.Workdir, false)
	if err != nil {
		return nil, h.wrap(err)
	}
	out := answer{left: maxJobs}
	script := fmt.Sprintf(`cd %s && for d in * %s*; do [ -d "$d" ] || continue; printf '%%s ' "$d"; head -c 4000000 "$d/%s" 2>/dev/null | tr -d '\n'; echo; done`, agent.Jobs(f.work), agent.FreePrefix, agent.JobName)
	if err := h.run(ctx, script, nil, &out); err != nil {
		return nil, h.wrap(err)
	}
	for line := range strings.Lines(out.String()) {
		id, text, _ := strings.Cut(strings.TrimSpace(line), " ")
		if id = strings.TrimPrefix(id, agent.FreePrefix); !remote.ValidID(id) {
			continue
		}
		var job remote.Job
		_ = json.Unmarshal([]byte(text), &job) // one that was cut off is listed all the same
		s := spot{Work: f.work}
		for _, file := range job.Files {
			if file.Name == agent.Program {
				s.Program = file.SHA256
			}
		}
		s.Program = cmp.Or(s.Program, strings.Repeat("0", 64))
		data, err := json.Marshal(s)
		if err != nil {
			return nil, err
		}
		all = append(all, remote.Handle{Provider: Kind, Job: id, Place: remote.Place{Host: h.name, GPU: job.Place.GPU}, Data: data})
	}
	return all, nil
}
