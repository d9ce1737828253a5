package mailbox

import (
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"fisub/remote/agent"
)

// Names of the mailbox's objects under the form's prefix; pieces of the event stream are named by EventKey. The exit is
// written last: once it exists, everything else does.
const (
	Started = "started"
	Log     = agent.LogName
	Exit    = agent.ExitName
	events  = "events/"
)

// MaxPiece is the largest size of an object of the mailbox, in bytes. A longer log is truncated.
const MaxPiece = 16 << 20

// Links are the host's only access to the bucket. They are secrets: until they expire they work for anyone.
type Links struct {
	Files map[string]string `json:"files"` // link to each file of the bundle, by SHA256
	Stop  string            `json:"stop"`  // the job must end once this object exists
	Form  Form              `json:"form"`
	Until time.Time         `json:"until"` // when the links expire; zero if never
}

// A Form holds the fields to post with an object in order to write it to the bucket under Prefix.
type Form struct {
	URL    string            `json:"url"`
	Fields map[string]string `json:"fields"`
	Prefix string            `json:"prefix"`
}

// EventKey returns the name of the piece of the event stream that begins at offset. Names sort like offsets.
func EventKey(offset int64) string { return fmt.Sprintf(events+"%020d", offset) }

// EventOffset parses a name written by EventKey; ok is false for any other name.
func EventOffset(name string) (offset int64, ok bool) {
	digits, ok := strings.CutPrefix(name, events)
	offset, err := strconv.ParseInt(digits, 10, 64)
	return offset, ok && err == nil && offset >= 0 && EventKey(offset) == name
}

// readLinks reads the file and removes it: the job's program does not need it.
func readLinks(name string) (*Links, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	if err := os.Remove(name); err != nil {
		return nil, err
	}
	l := &Links{}
	if err := json.Unmarshal(data, l); err != nil {
		return nil, fmt.Errorf("links: invalid JSON")
	}
	return l, nil
}

// client follows no redirects, so a link leads only to the bucket. It has no overall timeout: the contexts of requests
// do.
var client = &http.Client{
	Transport: &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		ForceAttemptHTTP2:     true,
		TLSHandshakeTimeout:   20 * time.Second,
		ResponseHeaderTimeout: time.Minute,
		IdleConnTimeout:       30 * time.Second,
	},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

// A refusal is an answer of the bucket that a retry would not change.
type refusal struct {
	status int
	text   string
}

func (e *refusal) Error() string { return e.text }

// do sends a request. Its errors omit the link, which net/http would quote. An answer other than 2xx is an error in the
// words of S3; 4xx except 408 and 429 is a *refusal.
func do(ctx context.Context, method, link, kind string, body io.Reader) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, link, body)
	if err != nil {
		return nil, &refusal{text: "no usable link"}
	}
	if kind != "" {
		req.Header.Set("Content-Type", kind)
	}
	resp, err := client.Do(req)
	if err != nil {
		var u *url.Error
		for errors.As(err, &u) {
			err = u.Err
		}
		return nil, err
	}
	if resp.StatusCode/100 == 2 {
		return resp, nil
	}
	defer resp.Body.Close()
	text := resp.Status
	var reply struct{ Code, Message string }
	words, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if xml.Unmarshal(words, &reply) == nil && reply.Code != "" {
		text = fmt.Sprintf("%s: %s: %.200s", resp.Status, reply.Code, reply.Message)
	}
	if c := resp.StatusCode; c/100 == 4 && c != http.StatusRequestTimeout && c != http.StatusTooManyRequests {
		return nil, &refusal{c, text}
	}
	return nil, errors.New(text)
}
