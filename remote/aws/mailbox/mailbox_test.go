package mailbox

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"fisub/remote"
	"fisub/remote/agent"
	"fisub/remote/remotetest"
	"fisub/remote/servertest"
)

func TestMain(m *testing.M) { remotetest.Main(m) }

func TestEventKey(t *testing.T) {
	for _, offset := range []int64{0, 9, 10, 1 << 40} {
		if got, ok := EventOffset(EventKey(offset)); !ok || got != offset {
			t.Errorf("%d: got %d, %v", offset, got, ok)
		}
	}
	if EventKey(9) >= EventKey(10) || EventKey(1<<40) >= Exit || EventKey(0) >= Started {
		t.Error("the names do not sort as they must")
	}
	for _, name := range []string{"", "events/", "events/1", "events/-0000000000000000001", "events/+0000000000000000001",
		"events/99999999999999999999",
		"events/0000000000000000000a", "00000000000000000001", "events/000000000000000000001"} {
		if _, ok := EventOffset(name); ok {
			t.Errorf("%q was taken", name)
		}
	}
}

// A store stands in for the bucket. Each test sets its answers.
type store struct {
	url    string
	mu     sync.Mutex
	left   map[string]string // by key
	order  []string
	get    func(w http.ResponseWriter, name string)
	post   func(w http.ResponseWriter, key string) bool // true if it has answered
	lose   func(key string) bool                        // true if the answer to an accepted request is lost
	other  []string                                     // pieces of the stream that were posted twice and differ
	stored map[string][]byte
}

func newStore(t *testing.T) *store {
	s := &store{left: map[string]string{}, stored: map[string][]byte{}}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		name := strings.TrimPrefix(r.URL.Path, "/")
		if r.Method == http.MethodGet {
			if s.get != nil {
				s.get(w, name)
			} else if content, ok := s.stored[name]; ok {
				_, _ = w.Write(content)
			} else {
				refuse(w, 404, "NoSuchKey", "The specified key does not exist.")
			}
			return
		}
		if err := r.ParseMultipartForm(1 << 30); err != nil || r.FormValue("policy") != "p" {
			refuse(w, 403, "AccessDenied", fmt.Sprint("bad form ", err))
			return
		}
		key := r.FormValue("key")
		if s.post != nil && s.post(w, key) {
			return
		}
		f, _, err := r.FormFile("file")
		if err != nil {
			refuse(w, 400, "MalformedPOSTRequest", err.Error())
			return
		}
		content, _ := io.ReadAll(f)
		if old, ok := s.left[key]; ok && strings.HasPrefix(key, "out/"+events) && old != string(content) {
			s.other = append(s.other, fmt.Sprintf("%s: %q, then %q", key, old, content))
		}
		s.left[key] = string(content)
		if s.lose != nil && s.lose(key) {
			panic(http.ErrAbortHandler)
		}
		s.order = append(s.order, key)
		w.WriteHeader(http.StatusNoContent)
	}))
	t.Cleanup(server.Close)
	s.url = server.URL
	return s
}

func refuse(w http.ResponseWriter, status int, code, message string) {
	w.WriteHeader(status)
	fmt.Fprintf(w,
		`<?xml version="1.0"?><Error><Code>%s</Code><Message>%s</Message><AWSAccessKeyId>AKIAPLANTED</AWSAccessKeyId></Error>`, code, message)
}

// run runs the script through a mailbox. It returns the uploaded exit, the mailbox's log and the error.
func (s *store) run(ctx context.Context, t *testing.T, text string, change func(*remote.Job, *Links, *Options)) (
	*remote.Exit, string, error) {
	t.Helper()
	job := remotetest.Script(t, text, nil)
	l := &Links{Files: map[string]string{}, Stop: s.url + "/stop?X-Amz-Signature=planted",
		Form: Form{URL: s.url + "/?X-Amz-Signature=planted",
			Fields: map[string]string{"policy": "p", "key": "x"}, Prefix: "out/"}}
	for _, f := range job.Files {
		content, err := os.ReadFile(f.Path)
		if err != nil {
			t.Fatal(err)
		}
		s.stored[f.SHA256] = content
		l.Files[f.SHA256] = s.url + "/" + f.SHA256 + "?X-Amz-Signature=planted"
	}
	var log bytes.Buffer
	o := Options{Agent: remotetest.Agent(), Log: &log, Every: 20 * time.Millisecond, Stop: 50 * time.Millisecond,
		Fetch: 20 * time.Second, Leave: 5 * time.Second}
	if change != nil {
		change(job, l, &o)
	}
	work := t.TempDir()
	dir := agent.JobDir(work, job.ID)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	links := filepath.Join(work, "links.json")
	for name, v := range map[string]any{filepath.Join(dir, agent.JobName): job, links: l} {
		raw, err := json.Marshal(v)
		if err == nil {
			err = os.WriteFile(name, raw, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	err := Run(ctx, dir, links, o)
	if _, gone := os.Stat(links); !errors.Is(gone, os.ErrNotExist) {
		t.Errorf("the links are still there: %v", gone)
	}
	var exit *remote.Exit
	if raw := s.left["out/"+Exit]; raw != "" {
		exit = &remote.Exit{}
		if err := json.Unmarshal([]byte(raw), exit); err != nil {
			t.Fatal(err)
		}
	}
	for _, text := range []string{log.String(), fmt.Sprint(err), fmt.Sprint(exit)} {
		for _, secret := range []string{"planted", "PLANTED", "X-Amz"} {
			if strings.Contains(text, secret) {
				t.Errorf("a link or a key in %q", text)
			}
		}
	}
	return exit, log.String(), err
}

func (s *store) stream() string {
	var keys []string
	for key := range s.left {
		if _, ok := EventOffset(strings.TrimPrefix(key, "out/")); ok {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	all := ""
	for _, key := range keys {
		if EventKey(int64(len(all))) != strings.TrimPrefix(key, "out/") {
			return "a piece begins elsewhere: " + key
		}
		all += s.left[key]
	}
	return all
}

func TestRun(t *testing.T) {
	s := newStore(t)
	exit, log, err := s.run(t.Context(), t, `echo one; sleep 0.2; echo two; echo words >&2; exit 3`, nil)
	if err != nil || exit == nil || exit.End != remote.Exited || exit.Code != 3 || s.stream() != "one\ntwo\n" {
		t.Fatalf("got %v, %+v, %q: %s", err, exit, s.stream(), log)
	}
	if !strings.Contains(s.left["out/log"], "words\n") {
		t.Errorf("log: got %q", s.left["out/log"])
	}
	if last := s.order[len(s.order)-1]; last != "out/exit.json" || s.order[0] != "out/started" {
		t.Errorf("order: got %v", s.order)
	}
}

// The stream is complete and in order even if the bucket is silent for a while. A piece whose answer was lost is posted
// again unchanged, though the stream has grown: a client may have read it.
func TestAnswerLost(t *testing.T) {
	s := newStore(t)
	lost := 0
	s.lose = func(key string) bool {
		if lost == 20 || !strings.HasPrefix(key, "out/"+events) {
			return false
		}
		lost++
		return true
	}
	exit, _, err := s.run(t.Context(), t, `for i in 1 2 3 4 5 6 7 8 9; do echo $i; sleep 0.1; done`, nil)
	if err != nil || exit == nil || exit.Code != 0 || s.stream() != "1\n2\n3\n4\n5\n6\n7\n8\n9\n" {
		t.Errorf("got %v, %+v, %q", err, exit, s.stream())
	}
	if len(s.other) > 0 {
		t.Errorf("pieces that changed: %q", s.other)
	}
}

func TestTrouble(t *testing.T) {
	s := newStore(t)
	tries := 0
	s.post = func(w http.ResponseWriter, _ string) bool {
		tries++
		if tries%3 != 0 {
			refuse(w, 503, "SlowDown", "Please reduce your request rate.")
			return true
		}
		return false
	}
	exit, log, err := s.run(t.Context(), t, `for i in 1 2 3 4 5; do echo $i; sleep 0.1; done`, nil)
	if err != nil || exit == nil || exit.Code != 0 || s.stream() != "1\n2\n3\n4\n5\n" {
		t.Errorf("got %v, %+v, %q", err, exit, s.stream())
	}
	if !strings.Contains(log, "fisub: storing results in the bucket: 503 Service Unavailable: SlowDown") {
		t.Errorf("got %q", log)
	}
}

// An expired form ends the run with an error in S3's words.
func TestFormExpired(t *testing.T) {
	s := newStore(t)
	s.post = func(w http.ResponseWriter, _ string) bool {
		refuse(w, 403, "AccessDenied", "Invalid according to Policy: Policy expired.")
		return true
	}
	exit, _, err := s.run(t.Context(), t, `echo one`, nil)
	if err == nil || exit != nil || !strings.Contains(err.Error(), "Policy expired") {
		t.Errorf("got %v, %+v", err, exit)
	}
}

func TestRefused(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(s *store, j *remote.Job, l *Links, o *Options)
		want   string
	}{
		{"another content", func(s *store, j *remote.Job, _ *Links, _ *Options) {
			s.stored[j.Files[1].SHA256] = []byte("other")
		}, "wrong hash"},
		{"longer than it should be", func(s *store, j *remote.Job, _ *Links, _ *Options) {
			s.stored[j.Files[1].SHA256] = append(s.stored[j.Files[1].SHA256], bytes.Repeat([]byte{0}, 1<<20)...)
		}, "wrong hash"},
		{"a link that has expired", func(s *store, _ *remote.Job, _ *Links, _ *Options) {
			s.get = func(w http.ResponseWriter, _ string) { refuse(w, 403, "AccessDenied", "Request has expired") }
		}, "403 Forbidden: AccessDenied: Request has expired"},
		{"no link", func(_ *store, j *remote.Job, l *Links, _ *Options) {
			l.Files[j.Files[1].SHA256] = "\x7f"
		}, "no usable link"},
		{"a redirect", func(s *store, _ *remote.Job, _ *Links, o *Options) {
			s.get = func(w http.ResponseWriter, _ string) {
				w.Header().Set("Location", "http://127.0.0.1:1/planted")
				w.WriteHeader(302)
			}
			o.Fetch = time.Second
		}, "302 Found"},
		{"nobody there", func(_ *store, j *remote.Job, l *Links, o *Options) {
			l.Files[j.Files[1].SHA256], o.Fetch = "http://127.0.0.1:1/?X-Amz-Signature=planted", time.Second
		}, "connection refused"},
		{"a bad name", func(_ *store, j *remote.Job, _ *Links, _ *Options) { j.Files[1].Name = "../x" },
			"is outside the bundle"},
		{"too late", func(_ *store, j *remote.Job, l *Links, _ *Options) { l.Until = time.Now().Add(j.Limit / 2) },
			"started too late"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newStore(t)
			exit, _, _ := s.run(t.Context(), t, `echo ran`, func(j *remote.Job, l *Links, o *Options) { c.change(s, j, l, o) })
			if exit == nil || exit.End != remote.Refused || !strings.Contains(exit.Text, c.want) || s.stream() != "" {
				t.Errorf("got %+v, stream %q, want refused: %s", exit, s.stream(), c.want)
			}
		})
	}
}

func TestStop(t *testing.T) {
	for _, how := range []string{"order", "signal"} {
		t.Run(how, func(t *testing.T) {
			s := newStore(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			s.post = func(_ http.ResponseWriter, key string) bool {
				if key != "out/"+EventKey(0) {
					return false
				}
				if how == "signal" {
					cancel()
				} else {
					s.stored["stop"] = []byte("stop")
				}
				return false
			}
			exit, log, err := s.run(ctx, t, `echo one; sleep 100`, nil)
			if err != nil || exit == nil || exit.End != remote.Cancelled || s.stream() != "one\n" ||
				strings.Contains(log, "stop requested") != (how == "order") {
				t.Errorf("got %v, %+v, %q, %q", err, exit, s.stream(), log)
			}
		})
	}
	t.Run("signal while fetching", func(t *testing.T) {
		s := newStore(t)
		ctx, cancel := context.WithCancel(t.Context())
		s.get = func(w http.ResponseWriter, _ string) { cancel(); refuse(w, 503, "SlowDown", "slow") }
		exit, _, _ := s.run(ctx, t, `echo one`, nil)
		if exit == nil || exit.End != remote.Cancelled {
			t.Errorf("got %+v", exit)
		}
	})
}

// A file in the store is not fetched again.
func TestHas(t *testing.T) {
	s := newStore(t)
	h := sha256.Sum256([]byte("kept"))
	file := remote.File{Name: "kept", SHA256: hex.EncodeToString(h[:]), Size: 4}
	work := t.TempDir()
	m := &box{dir: agent.JobDir(work, "j"),
		links: &Links{Files: map[string]string{file.SHA256: s.url + "/" + file.SHA256}},
		o:     Options{Log: io.Discard, Fetch: time.Minute}}
	s.stored[file.SHA256] = []byte("kept")
	if err := os.MkdirAll(m.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	run := file
	run.Name, run.Exec = "run", true
	raw, _ := json.Marshal(&remote.Job{ID: "j", Limit: 1, Args: []string{"run"}, Files: []remote.File{run, file}})
	servertest.Write(t, filepath.Join(m.dir, agent.JobName), string(raw))
	for range 2 {
		if err := m.prepare(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.get = func(http.ResponseWriter, string) { t.Error("it was fetched again") }
	}
	if st, err := os.Stat(agent.Stored(work, file.SHA256)); err != nil || st.Mode().Perm() != 0o555 {
		t.Errorf("got %v, %v", st, err)
	}
	client.CloseIdleConnections()
}
