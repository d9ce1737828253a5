package serve

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
)

// counted is a page whose stamp is a number, and which tells how often it was made.
type counted struct{ stamp, made atomic.Int64 }

func (c *counted) page() Page {
	return Page{
		Stamp: func() string { return fmt.Sprint(c.stamp.Load()) },
		Write: func(w io.Writer, stamp string) error {
			c.made.Add(1)
			if stamp == "13" {
				return errors.New("no luck")
			}
			_, err := fmt.Fprintf(w, "<p>page %s", stamp)
			return err
		},
	}
}

// start serves c until the returned function is called, which gives what Run gives.
func start(t *testing.T, c *counted) (l net.Listener, stop func() error) {
	t.Helper()
	l, err := Listen(0)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, l, c.page()) }()
	t.Cleanup(cancel)
	return l, func() error {
		cancel()
		return <-ended
	}
}

func get(t *testing.T, method, url, host string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = host
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text := ""
	if strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		return resp, text // which has no end
	}
	if data, err := io.ReadAll(resp.Body); err == nil {
		text = string(data)
	} else {
		t.Error(err)
	}
	return resp, text
}

// The page is made anew where its stamp is another one, and only then.
func TestPage(t *testing.T) {
	c := &counted{}
	l, stop := start(t, c)
	if ip := l.Addr().(*net.TCPAddr).IP.String(); ip != "127.0.0.1" {
		t.Errorf("it listens on %s, want 127.0.0.1", ip)
	}
	for i, want := range []struct {
		stamp, made int64
		text        string
		status      int
	}{{1, 1, "<p>page 1", 200}, {1, 1, "<p>page 1", 200}, {2, 2, "<p>page 2", 200}, {13, 3, "no luck\n", 500},
		{14, 4, "<p>page 14", 200}} {
		c.stamp.Store(want.stamp)
		resp, text := get(t, "GET", URL(l), "")
		if text != want.text || resp.StatusCode != want.status || c.made.Load() != want.made {
			t.Errorf("%d: got %d, %q, made %d times, want %+v", i, resp.StatusCode, text, c.made.Load(), want)
		}
		for name, value := range map[string]string{"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff",
			"Content-Security-Policy": "frame-ancestors 'none'", "Cross-Origin-Resource-Policy": "same-origin"} {
			if got := resp.Header.Get(name); got != value {
				t.Errorf("%s: got %q, want %q", name, got, value)
			}
		}
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	if _, err := net.Dial("tcp", l.Addr().String()); err == nil {
		t.Error("it still listens")
	}
}

// Only GET is answered, and only for a host that is this machine, under whatever port.
func TestRefused(t *testing.T) {
	c := &counted{}
	l, _ := start(t, c)
	for _, test := range []struct {
		method, path, host string
		want               int
	}{
		{"GET", "", "localhost:9000", 200}, {"GET", "", "localhost", 200}, {"GET", "", "127.0.0.1:1", 200},
		{"GET", "", "evil.example", 403}, {"GET", "", "evil.example:80", 403}, {"GET", "", "127.0.0.1.evil.example", 403},
		{"GET", "events", "evil.example", 403}, {"POST", "", "evil.example", 403},
		{"POST", "", "", 405}, {"HEAD", "", "", 405}, {"PUT", "events", "", 405}, {"OPTIONS", "", "", 405},
		{"GET", "other", "", 404}, {"GET", "favicon.ico", "", 204},
	} {
		if resp, _ := get(t, test.method, URL(l)+test.path, test.host); resp.StatusCode != test.want {
			t.Errorf("%+v: got %d", test, resp.StatusCode)
		}
	}
	if c.made.Load() != 1 {
		t.Errorf("the page was made %d times, want once", c.made.Load())
	}
}

// A browser is told the stamp, then each other one; the server ends while it listens.
func TestEvents(t *testing.T) {
	c := &counted{}
	l, stop := start(t, c)
	resp, err := http.Get(URL(l) + "events")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if got := resp.Header.Get("Content-Type"); got != "text/event-stream" {
		t.Errorf("type: got %q", got)
	}
	in := bufio.NewScanner(resp.Body)
	for i := range int64(3) {
		c.stamp.Store(i)
		for _, want := range []string{fmt.Sprint("data: ", i), ""} {
			if !in.Scan() || in.Text() != want {
				t.Fatalf("got %q, %v, want %q", in.Text(), in.Err(), want)
			}
		}
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	if in.Scan() || in.Err() != nil {
		t.Errorf("at the end: got %q, %v", in.Text(), in.Err())
	}
}

// A port that is taken is an error.
func TestTaken(t *testing.T) {
	l, _ := start(t, &counted{})
	if _, err := Listen(l.Addr().(*net.TCPAddr).Port); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("got %v", err)
	}
}
