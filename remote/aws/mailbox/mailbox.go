// Package mailbox runs the agent on a host without credentials or incoming connections. The host has links to single
// objects of a bucket, and a form for writing objects under one prefix. The mailbox fetches the bundle, starts the
// agent, and uploads the event stream and the log as they grow, then the exit. It serves hosts started by remote/aws;
// the agent defines jobs and runs them.
package mailbox

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"fisub/internal/cache"
	"fisub/internal/plain"
	"fisub/remote"
	"fisub/remote/agent"
	"fisub/remote/work"
)

// Options configure a Run. A zero duration selects the default.
type Options struct {
	Agent *agent.Agent
	Log   io.Writer     // becomes the host's own log
	Every time.Duration // between checks for new output; default 500 ms
	Stop  time.Duration // between checks for the stop object; default 3 s
	Fetch time.Duration // time limit for fetching the bundle; default 20 min
	Leave time.Duration // time limit for uploading the rest of the results; default 5 min
}

// Main runs `fisub agent mailbox DIR LINKS`: a Run that SIGTERM and SIGINT cancel.
func Main(o Options, args []string) error {
	if len(args) != 2 {
		return errors.New("agent: want mailbox DIR LINKS")
	}
	dir, err := filepath.Abs(args[0])
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	return Run(ctx, dir, args[1], o)
}

// Run runs the job in dir, a folder in the jobs of a work folder. It reads the links from the file named by links and
// removes that file. When ctx ends, it cancels the job. It returns nil if the exit was uploaded.
func Run(ctx context.Context, dir, links string, o Options) error {
	o.Every, o.Stop = cmp.Or(o.Every, 500*time.Millisecond), cmp.Or(o.Stop, 3*time.Second)
	o.Fetch, o.Leave = cmp.Or(o.Fetch, 20*time.Minute), cmp.Or(o.Leave, 5*time.Minute)
	defer client.CloseIdleConnections()
	l, err := readLinks(links)
	if err != nil {
		return err
	}
	m := &box{dir: dir, links: l, o: o}
	if err := m.prepare(ctx); err != nil {
		return errors.Join(m.end(ctx, refused(ctx, err)), err)
	}
	return m.end(ctx, m.run(ctx))
}

type box struct {
	dir    string
	links  *Links
	o      Options
	sent   int64 // bytes of the event stream known to be in the bucket
	tried  int64 // bytes that may be in the bucket
	logged int   // size of the log at its last upload
	quiet  string
}

func (m *box) say(format string, args ...any) {
	fmt.Fprintf(m.o.Log, "fisub: "+format+"\n", args...)
}

// prepare fetches the files of the bundle that are not in the store.
func (m *box) prepare(ctx context.Context) error {
	job, err := agent.ReadJob(m.dir)
	if err != nil {
		return err
	}
	if u := m.links.Until; !u.IsZero() && time.Now().Add(job.Limit).After(u) {
		return fmt.Errorf("%w: the links to the bucket expire at %s, the job may take %v", errLate,
			u.UTC().Format(time.RFC3339), job.Limit)
	}
	work := filepath.Dir(filepath.Dir(m.dir))
	if err := os.MkdirAll(agent.Store(work), 0o700); err != nil {
		return err
	}
	begin := time.Now()
	ctx, cancel := context.WithTimeout(ctx, m.o.Fetch)
	defer cancel()
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(4)
	seen, total := map[string]bool{}, int64(0)
	for _, f := range job.Files {
		if _, err := os.Stat(agent.Stored(work, f.SHA256)); err == nil || seen[f.SHA256] {
			continue
		}
		seen[f.SHA256] = true
		total += f.Size
		g.Go(func() error {
			err := again(ctx, func() error { return m.fetch(ctx, work, f) })
			if err != nil {
				return fmt.Errorf("fetching %q: %w", f.Name, err)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	m.say("fetched %d files, %d bytes, in %.1f s", len(seen), total, time.Since(begin).Seconds())
	return nil
}

// errLate means that the links would expire before the job reaches its limit.
var errLate = errors.New("started too late")

// fetch stores one file of the bundle; it keeps only a complete file with the right hash.
func (m *box) fetch(ctx context.Context, root string, f remote.File) error {
	resp, err := do(ctx, http.MethodGet, m.links.Files[f.SHA256], "", nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body := &work.Checked{R: io.LimitReader(resp.Body, f.Size+1), File: f}
	return cache.Write(agent.Stored(root, f.SHA256), f.Mode(), func(w io.Writer) error {
		_, err := io.Copy(w, body)
		return err
	})
}

// again calls f up to six times within half a minute, until it succeeds or fails permanently. If ctx ends an attempt,
// it returns the more telling error of the attempt before.
func again(ctx context.Context, f func() error) error {
	var last error
	for wait := time.Second; ; wait *= 2 {
		err := f()
		if err != nil && ctx.Err() != nil && last != nil {
			return last
		}
		last = err
		stays := errors.As(err, new(*refusal)) || errors.Is(err, agent.ErrHash) || errors.Is(err, syscall.ENOSPC)
		if err == nil || stays || wait > 16*time.Second {
			return err
		}
		if remote.Sleep(ctx, wait) != nil {
			return err
		}
	}
}

// refused returns the exit of a job that was not started.
func refused(ctx context.Context, err error) remote.Exit {
	exit := remote.Exit{End: remote.Refused, Text: err.Error()}
	var no *refusal
	switch {
	case ctx.Err() != nil:
		exit = remote.Exit{End: remote.Cancelled, Text: "cancelled while the bundle was fetched"}
	case errors.Is(err, syscall.ENOSPC):
		exit.Hint = "use a host with a larger disk"
	case errors.Is(err, agent.ErrHash):
		exit.Hint = "delete that object of the bucket's store and submit again"
	case errors.Is(err, errLate), errors.As(err, &no) && no.status == http.StatusForbidden:
		exit.Hint = "submit again; if the job waited long, with a larger queue_limit or longer-lived credentials"
	}
	return exit
}

// run runs the agent and uploads its output in the meantime. It returns the exit for a job that wrote none.
func (m *box) run(ctx context.Context) remote.Exit {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan remote.Exit, 1)
	go func() {
		exit, err := m.o.Agent.Run(ctx, m.dir)
		if err != nil {
			exit = remote.Exit{End: remote.Refused, Text: err.Error()}
		}
		ended <- exit
	}()
	started := false
	asked, logAt := time.Now(), time.Now()
	grown := time.NewTicker(m.o.Every)
	defer grown.Stop()
	for {
		short, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		if !started {
			err := m.post(short, Started, nil)
			m.trouble(err)
			started = err == nil
		}
		m.trouble(m.leaveEvents(short))
		if time.Since(logAt) > 20*m.o.Every {
			logAt = time.Now()
			m.trouble(m.leaveLog(short))
		}
		if time.Since(asked) > m.o.Stop && ctx.Err() == nil {
			asked = time.Now()
			if resp, err := do(short, http.MethodGet, m.links.Stop, "", nil); err == nil {
				resp.Body.Close()
				m.say("stop requested in the bucket")
				stop()
			}
		}
		cancel()
		select {
		case exit := <-ended:
			return exit
		case <-grown.C:
		}
	}
}

// trouble logs an error that will be retried, unless it equals the last one.
func (m *box) trouble(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != "" && text != m.quiet {
		m.say("storing results in the bucket: %s", text)
	}
	m.quiet = text
}

// end uploads the rest of the stream, the log, and the exit: the agent's, or fallback if the agent wrote none.
func (m *box) end(ctx context.Context, fallback remote.Exit) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), m.o.Leave)
	defer cancel()
	exit, err := os.ReadFile(filepath.Join(m.dir, agent.ExitName))
	if err != nil {
		if exit, err = json.Marshal(fallback); err != nil {
			return err
		}
		m.say("%s", agent.Describe(fallback))
	}
	for _, step := range []func() error{
		func() error { return m.leaveEvents(ctx) },
		func() error { return m.leaveLog(ctx) },
		func() error { return m.post(ctx, Exit, exit) },
	} {
		for wait := m.o.Every; ; wait = min(2*wait, 15*time.Second) {
			err := step()
			if err == nil {
				break
			}
			m.trouble(err)
			if errors.As(err, new(*refusal)) || remote.Sleep(ctx, wait) != nil {
				return fmt.Errorf("storing results in the bucket: %w", err)
			}
		}
	}
	return nil
}

// leaveEvents posts the new part of the event stream. A piece that may already be in the bucket is posted unchanged: a
// client that has read it expects the next one.
func (m *box) leaveEvents(ctx context.Context) error {
	for {
		piece, err := m.read(agent.EventsName, m.sent, cmp.Or(m.tried-m.sent, MaxPiece/2))
		if err != nil || len(piece) == 0 {
			return err
		}
		m.tried = m.sent + int64(len(piece))
		if err := m.post(ctx, EventKey(m.sent), piece); err != nil {
			return err
		}
		m.sent += int64(len(piece))
	}
}

// read returns a piece of a file in the job's folder, or nothing if the file does not exist yet.
func (m *box) read(name string, from, size int64) ([]byte, error) {
	f, err := plain.Open(filepath.Join(m.dir, name))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.NewSectionReader(f, from, size))
}

func (m *box) leaveLog(ctx context.Context) error {
	log, err := m.read(agent.LogName, 0, MaxPiece/2)
	if err != nil || len(log) == m.logged {
		return err
	}
	if err = m.post(ctx, Log, log); err == nil {
		m.logged = len(log)
	}
	return err
}

func (m *box) post(ctx context.Context, name string, content []byte) error {
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	for key, value := range m.links.Form.Fields {
		if key != "key" {
			_ = form.WriteField(key, value) // writes to a bytes.Buffer cannot fail
		}
	}
	_ = form.WriteField("key", m.links.Form.Prefix+name)
	part, err := form.CreateFormFile("file", "file")
	if err != nil {
		return err
	}
	_, _ = part.Write(content)
	if err := form.Close(); err != nil {
		return err
	}
	resp, err := do(ctx, http.MethodPost, m.links.Form.URL, form.FormDataContentType(), &body)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}
