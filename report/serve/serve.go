// Package serve shows a page that changes to the browsers of this machine. It knows nothing of what is on the page.
package serve

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
)

// A Page is what is served.
type Page struct {
	// Stamp is a word that becomes another one when the page would be another one. It is called once a second for each
	// browser, from several goroutines.
	Stamp func() string
	// Write writes the page as it is now, with the stamp that it had before. Its error is the server's: what the reader
	// can mend belongs on the page. One call is made at a time.
	Write func(w io.Writer, stamp string) error
}

// Listen opens a port of 127.0.0.1, a free one where port is 0.
func Listen(port int) (net.Listener, error) {
	return net.Listen("tcp4", fmt.Sprintf("127.0.0.1:%d", port))
}

// URL is the address of what is served on l.
func URL(l net.Listener) string { return "http://" + l.Addr().String() + "/" }

// Run serves p on l until ctx ends, and closes l. At / is the page, at /events its stamp, now and whenever it changes,
// as server-sent events.
func Run(ctx context.Context, l net.Listener, p Page) error {
	s := &server{Page: p}
	mux := http.NewServeMux()
	mux.HandleFunc("/{$}", s.page)
	mux.HandleFunc("/events", s.events)
	mux.HandleFunc("/favicon.ico", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	h := &http.Server{Handler: guard(mux), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute,
		BaseContext: func(net.Listener) context.Context { return ctx }} // whose end ends the events
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		defer cancel()
		if h.Shutdown(late) != nil {
			h.Close()
		}
	})
	err := h.Serve(l)
	if !stop() {
		<-ended
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// guard refuses what is not asked by a browser for a page of this machine: a page of elsewhere whose host name has been
// led to 127.0.0.1 has that name in its requests. The port may be another one, which ssh leads here.
func guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := r.Host
		if name, _, err := net.SplitHostPort(host); err == nil {
			host = name
		}
		h := w.Header()
		for _, line := range []string{"Cache-Control: no-store", "X-Content-Type-Options: nosniff",
			"Referrer-Policy: no-referrer", "Cross-Origin-Resource-Policy: same-origin",
			"Content-Security-Policy: frame-ancestors 'none'"} {
			name, value, _ := strings.Cut(line, ": ")
			h.Set(name, value)
		}
		switch {
		case host != "127.0.0.1" && host != "localhost":
			http.Error(w, "fisub answers requests to 127.0.0.1 and localhost only", http.StatusForbidden)
		case r.Method != http.MethodGet:
			h.Set("Allow", http.MethodGet)
			http.Error(w, "GET only", http.StatusMethodNotAllowed)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

type server struct {
	Page
	mu    sync.Mutex
	stamp string
	text  []byte // the page of that stamp; nil before the first
}

// page sends the page, made anew where it would be another one.
func (s *server) page(w http.ResponseWriter, _ *http.Request) {
	text, err := s.make()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = w.Write(text)
}

func (s *server) make() ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	stamp := s.Stamp()
	if s.text != nil && stamp == s.stamp {
		return s.text, nil
	}
	var b bytes.Buffer
	if err := s.Write(&b, stamp); err != nil {
		return nil, err
	}
	s.stamp, s.text = stamp, b.Bytes()
	return s.text, nil
}

// events sends the stamp, now and whenever it changes.
func (s *server) events(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	out := http.NewResponseController(w)
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for last := ""; ; {
		if stamp := s.Stamp(); stamp != last {
			last = stamp
			if _, err := fmt.Fprintf(w, "data: %s\n\n", stamp); err != nil || out.Flush() != nil {
				return
			}
		}
		select {
		case <-r.Context().Done():
			return
		case <-tick.C:
		}
	}
}
