package aws

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/smithy-go"
	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"
)

// A sent is one request as the server saw it.
type sent struct {
	*http.Request
	body string
}

func (s sent) form(key string) string {
	form, _ := url.ParseQuery(s.body)
	return form.Get(key)
}

// newAPI gives a client of a server that answers one request after the other, the last answer for all further ones, and what
// was asked.
func newAPI(t *testing.T, answers ...http.HandlerFunc) (*ec2API, func() []sent) {
	t.Helper()
	var mu sync.Mutex
	var all []sent
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		all = append(all, sent{r, string(body)})
		answer := answers[min(len(all), len(answers))-1]
		mu.Unlock()
		answer(w, r)
	}))
	t.Cleanup(server.Close)
	t.Setenv("AWS_ENDPOINT_URL", server.URL)
	p := newProvider(t, "ec2", nil)
	t.Cleanup(func() { p.Close() })
	a, err := p.account(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	a.ec2.retryer = retry.NewStandard(func(o *retry.StandardOptions) {
		o.Backoff = retry.BackoffDelayerFunc(func(int, error) (time.Duration, error) { return time.Millisecond, nil })
	})
	return a.ec2, func() []sent {
		mu.Lock()
		defer mu.Unlock()
		return all
	}
}

func says(status int, text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, text)
	}
}

func refuses(status int, code string) http.HandlerFunc {
	return says(status, `<?xml version="1.0" encoding="UTF-8"?><Response><Errors><Error><Code>`+code+`</Code><Message>no</Message></Error></Errors><RequestID>r-7</RequestID></Response>`)
}

var starts = says(200, `<RunInstancesResponse><instancesSet><item><instanceId>i-1</instanceId></item></instancesSet></RunInstancesResponse>`)

func cut(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

// What passes is tried again with the same token, what EC2 would say again is not.
func TestEC2Retries(t *testing.T) {
	for _, k := range []struct {
		name    string
		answers []http.HandlerFunc
		want    int
		code    string // of the error; "" where there is none, "-" for one without a code
	}{
		{"at once", []http.HandlerFunc{starts}, 1, ""},
		{"unavailable", []http.HandlerFunc{says(503, ""), says(502, "<html>bad gateway</html>"), starts}, 3, ""},
		{"throttled", []http.HandlerFunc{refuses(400, "RequestLimitExceeded"), refuses(503, "RequestLimitExceeded"), starts}, 3, ""},
		{"no answer", []http.HandlerFunc{cut, starts}, 2, ""},
		{"three times", []http.HandlerFunc{refuses(500, "InternalError")}, 3, "InternalError"},
		{"no quota", []http.HandlerFunc{refuses(400, "VcpuLimitExceeded"), starts}, 1, "VcpuLimitExceeded"},
		{"a dry run", []http.HandlerFunc{refuses(412, "DryRunOperation"), starts}, 1, "DryRunOperation"},
		{"no text", []http.HandlerFunc{says(400, ""), starts}, 1, "UnknownError"},
		{"not XML", []http.HandlerFunc{says(403, "no!"), starts}, 1, "UnknownError"},
		{"broken XML", []http.HandlerFunc{says(403, "<Response><Errors>"), starts}, 1, "-"},
	} {
		t.Run(k.name, func(t *testing.T) {
			e, asked := newAPI(t, k.answers...)
			var out started
			err := e.call(t.Context(), "RunInstances", url.Values{"ClientToken": {"run-1"}}, &out)
			if k.code == "" && (err != nil || len(out.Instances) != 1 || out.Instances[0].ID != "i-1") {
				t.Errorf("got %+v, %v", out, err)
			}
			if k.code != "" && (err == nil || code(err) != strings.Trim(k.code, "-")) {
				t.Errorf("got %v, want %s", err, k.code)
			}
			var resp *smithyhttp.ResponseError
			if k.code != "" && !errors.As(err, &resp) {
				t.Errorf("got %#v, without a status", err)
			}
			all := asked()
			if len(all) != k.want {
				t.Errorf("got %d requests, want %d", len(all), k.want)
			}
			for _, r := range all {
				if r.form("Action") != "RunInstances" || r.form("ClientToken") != "run-1" || r.form("Version") != "2016-11-15" {
					t.Errorf("got %s", r.body)
				}
			}
		})
	}
}

// The settings of the AWS tools hold for EC2 too.
func TestEC2RetrySettings(t *testing.T) {
	t.Setenv("AWS_MAX_ATTEMPTS", "2")
	for mode, adaptive := range map[string]bool{"standard": false, "adaptive": true} {
		t.Setenv("AWS_RETRY_MODE", mode)
		cfg, err := awsconfig.LoadDefaultConfig(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		e := newEC2API(cfg)
		if e.retryer.MaxAttempts() != 2 {
			t.Errorf("%s: got %d attempts, want 2", mode, e.retryer.MaxAttempts())
		}
		cfg.RetryMaxAttempts = 0
		if _, got := newEC2API(cfg).retryer.(*retry.AdaptiveMode); got != adaptive {
			t.Errorf("%s: got adaptive %v", mode, got)
		}
	}
}

// An error has EC2's words, the request's id, and is told from one of the way there.
func TestEC2Errors(t *testing.T) {
	e, _ := newAPI(t, refuses(403, "UnauthorizedOperation"))
	err := e.call(t.Context(), "TerminateInstances", nil, nil)
	want := "operation error EC2: TerminateInstances, https response error StatusCode: 403, RequestID: r-7, api error UnauthorizedOperation: no"
	var api *smithy.GenericAPIError
	if !errors.As(err, &api) || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	for name, k := range map[string]struct {
		answer http.HandlerFunc
		want   string
	}{
		"another answer": {says(200, "<html></html>"), `the answer is "html", not TerminateInstancesResponse`},
		"nothing":        {says(200, ""), "reading the answer: EOF"},
		"half of it":     {says(200, "<TerminateInstancesResponse><a>"), "reading the answer: XML syntax error"},
		"too much": {func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.Copy(w, io.LimitReader(zeros{}, mostAnswer+1))
		}, "the answer has more than 33554432 bytes"},
		"less than announced": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, "<TerminateInstancesResponse></TerminateInstancesResponse>")
		}, "reading the answer: unexpected EOF"},
	} {
		e, _ := newAPI(t, k.answer)
		err := e.call(t.Context(), "TerminateInstances", nil, nil)
		if err == nil || !strings.Contains(err.Error(), k.want) || code(err) != "" {
			t.Errorf("%s: got %v, want %s", name, err, k.want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	e, asked := newAPI(t, func(_ http.ResponseWriter, r *http.Request) {
		cancel()
		<-r.Context().Done()
	})
	if err := e.call(ctx, "TerminateInstances", nil, nil); !errors.Is(err, context.Canceled) || len(asked()) != 1 {
		t.Errorf("cancelled: got %v after %d requests", err, len(asked()))
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

// The signature is the one that Signature Version 4 prescribes, at EC2's time.
func TestEC2Signature(t *testing.T) {
	ahead := func(d time.Duration, then http.HandlerFunc) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Date", time.Now().Add(d).UTC().Format(http.TimeFormat))
			then(w, r)
		}
	}
	t.Setenv("AWS_SESSION_TOKEN", "session")
	e, asked := newAPI(t, ahead(10*time.Minute, refuses(401, "AuthFailure")), ahead(10*time.Minute, starts))
	if err := e.call(t.Context(), "RunInstances", url.Values{"ImageId": {"a b&c/é"}}, &started{}); err != nil {
		t.Fatal(err)
	}
	all := asked()
	if len(all) != 2 {
		t.Fatalf("got %d requests, want a second one at EC2's time", len(all))
	}
	for i, r := range all {
		date := r.Header.Get("X-Amz-Date")
		at, err := time.Parse("20060102T150405Z", date)
		if off := time.Until(at.Add(-time.Duration(i) * 10 * time.Minute)); err != nil || off.Abs() > 5*time.Second {
			t.Errorf("request %d: signed %v off, %v", i+1, off, err)
		}
		scope := date[:8] + "/us-east-1/ec2/aws4_request"
		head, names, _ := strings.Cut(r.Header.Get("Authorization"), ", SignedHeaders=")
		names, got, _ := strings.Cut(names, ", Signature=")
		if want := "AWS4-HMAC-SHA256 Credential=" + accessKey + "/" + scope; head != want {
			t.Errorf("got %s, want %s", head, want)
		}
		canonical := "POST\n/\n\n"
		for _, name := range strings.Split(names, ";") {
			value := r.Header.Get(name)
			switch name {
			case "host":
				value = r.Host
			case "content-length":
				value = fmt.Sprint(r.ContentLength)
			}
			canonical += name + ":" + value + "\n"
		}
		hash := func(s string) string { sum := sha256.Sum256([]byte(s)); return hex.EncodeToString(sum[:]) }
		mac := func(key []byte, s string) []byte {
			m := hmac.New(sha256.New, key)
			m.Write([]byte(s))
			return m.Sum(nil)
		}
		canonical += "\n" + names + "\n" + hash(r.body)
		key := []byte("AWS4" + secretKey)
		for _, part := range strings.Split(scope, "/") {
			key = mac(key, part)
		}
		if want := hex.EncodeToString(mac(key, "AWS4-HMAC-SHA256\n"+date+"\n"+scope+"\n"+hash(canonical))); got != want {
			t.Errorf("request %d: got %s, want %s", i+1, got, want)
		}
		for _, name := range []string{"host", "x-amz-date", "x-amz-security-token"} {
			if !strings.Contains(";"+names+";", ";"+name+";") {
				t.Errorf("%s is not signed: %s", name, names)
			}
		}
		if r.Header.Get("X-Amz-Security-Token") != "session" || !strings.HasPrefix(r.UserAgent(), "aws-sdk-go-v2/") || r.URL.Path != "/" ||
			r.Header.Get("Content-Type") != "application/x-www-form-urlencoded" {
			t.Errorf("got %s %v", r.URL, r.Header)
		}
	}
}

func TestEC2Endpoint(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config")
	profiles := "[profile own]\nservices = s\nendpoint_url = https://profile.example\n[services s]\nec2 =\n  endpoint_url = https://profile-ec2.example\n"
	if err := os.WriteFile(file, []byte(profiles), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("AWS_CONFIG_FILE", file)
	for _, k := range []struct{ name, region, profile, all, own, ignore, want string }{
		{name: "AWS's", region: "eu-west-1", want: "https://ec2.eu-west-1.amazonaws.com"},
		{name: "government", region: "us-gov-west-1", want: "https://ec2.us-gov-west-1.amazonaws.com"},
		{name: "China", region: "cn-north-1", want: "https://ec2.cn-north-1.amazonaws.com.cn"},
		{name: "all services", region: "eu-west-1", all: "http://a.example", want: "http://a.example"},
		{name: "this service", region: "eu-west-1", all: "http://a.example", own: "http://b.example", want: "http://b.example"},
		{name: "only this service", region: "eu-west-1", own: "http://b.example", want: "http://b.example"},
		{name: "the profile's", region: "eu-west-1", profile: "own", want: "https://profile-ec2.example"},
		{name: "before the profile's", region: "eu-west-1", profile: "own", all: "http://a.example", want: "http://a.example"},
		{name: "ignored", region: "eu-west-1", profile: "own", all: "http://a.example", own: "http://b.example", ignore: "true", want: "https://ec2.eu-west-1.amazonaws.com"},
	} {
		t.Run(k.name, func(t *testing.T) {
			for key, value := range map[string]string{"AWS_ENDPOINT_URL": k.all, "AWS_ENDPOINT_URL_EC2": k.own, "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": k.ignore} {
				t.Setenv(key, value)
				if value == "" {
					os.Unsetenv(key)
				}
			}
			cfg, err := awsconfig.LoadDefaultConfig(t.Context(), awsconfig.WithRegion(k.region), awsconfig.WithSharedConfigProfile(k.profile))
			if err != nil {
				t.Fatal(err)
			}
			if got := newEC2API(cfg).endpoint; got != k.want {
				t.Errorf("got %s, want %s", got, k.want)
			}
		})
	}
}

// Nothing is signed for a place that is not EC2's.
func TestEC2Elsewhere(t *testing.T) {
	for _, k := range []struct{ region, endpoint, want string }{
		{"evil.example/#", "", `"evil.example/#" is no region`},
		{"x@evil.example:443/", "", `is no region`},
		{"a.b", "", `is no region`},
		{"-a", "", `is no region`},
		{"us-east-1", "ec2.example", `the endpoint of EC2 is no URL: "ec2.example"`},
		{"us-east-1", "ftp://ec2.example", `the endpoint of EC2 is no URL`},
		{"us-east-1", "https://", `the endpoint of EC2 is no URL`},
	} {
		cfg := aws.Config{Region: k.region, HTTPClient: smithyhttp.NopClient{}, Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			t.Errorf("%s %s: the credentials are asked for", k.region, k.endpoint)
			return aws.Credentials{}, errors.New("none")
		})}
		if k.endpoint != "" {
			cfg.BaseEndpoint = &k.endpoint
		}
		if err := newEC2API(cfg).call(t.Context(), "DescribeInstances", nil, nil); err == nil || !strings.Contains(err.Error(), k.want) {
			t.Errorf("%s %s: got %v, want %s", k.region, k.endpoint, err, k.want)
		}
	}
}

// All pages are read, and a server that repeats one is not asked for ever.
func TestEC2Pages(t *testing.T) {
	page := func(id, next string) http.HandlerFunc {
		return says(200, `<DescribeInstancesResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"><reservationSet><item><instancesSet><item><instanceId>`+id+
			`</instanceId><instanceState><name>running</name></instanceState><stateReason><code>c</code><message>m</message></stateReason><tagSet><item><key>fisub:job</key><value>a&amp;b</value></item></tagSet>`+
			`</item><item><instanceId>`+id+`-2</instanceId></item></instancesSet></item></reservationSet><nextToken>`+next+`</nextToken></DescribeInstancesResponse>`)
	}
	p := newProvider(t, "ec2", nil)
	e, asked := newAPI(t, page("i-1", "n+1"), page("i-2", "n+2"), page("i-3", ""))
	all, err := (&instances{p, &account{ec2: e}}).tagged(t.Context(), url.Values{"Filter.1.Name": {"a"}})
	if got, want := fmt.Sprintf("%+v", all[:min(2, len(all))]), "[{ID:i-1 State:running Reason:c Message:m Tags:[{Key:fisub:job Value:a&b}]} {ID:i-1-2 State: Reason: Message: Tags:[]}]"; err != nil || len(all) != 6 || got != want {
		t.Errorf("got %d, %s, %v, want 6, %s", len(all), got, err, want)
	}
	for i, r := range asked() {
		if got, want := r.form("NextToken"), []string{"", "n+1", "n+2"}[i]; got != want || r.form("Filter.1.Name") != "a" {
			t.Errorf("page %d: got %s, want %s", i+1, r.body, want)
		}
	}
	e, asked = newAPI(t, page("i-1", "n"))
	if _, err := (&instances{p, &account{ec2: e}}).tagged(t.Context(), url.Values{}); err == nil || len(asked()) != 2 {
		t.Errorf("the same page again: got %v after %d requests", err, len(asked()))
	}
}

// A reservation's times may be missing.
func TestEC2Reservation(t *testing.T) {
	e, _ := newAPI(t, says(200, `<DescribeCapacityReservationsResponse><capacityReservationSet><item><state>scheduled</state><reservationType>capacity-block</reservationType>`+
		`<startDate>2026-11-22T11:30:00.000Z</startDate></item></capacityReservationSet></DescribeCapacityReservationsResponse>`))
	var r reservations
	if err := e.call(t.Context(), "DescribeCapacityReservations", nil, &r); err != nil || len(r.All) != 1 || r.All[0].End != nil || r.All[0].State != "scheduled" ||
		r.All[0].Start == nil || !r.All[0].Start.Equal(time.Date(2026, 11, 22, 11, 30, 0, 0, time.UTC)) {
		t.Errorf("got %+v, %v", r, err)
	}
}

// Whatever EC2 answers is read or refused, without a panic.
func FuzzEC2Answer(f *testing.F) {
	f.Add(`<DescribeInstancesResponse><reservationSet><item><instancesSet><item><instanceId>i-1</instanceId></item></instancesSet></item></reservationSet></DescribeInstancesResponse>`)
	f.Add(`<Response><Errors><Error><Code>A</Code></Error></Errors></Response>`)
	f.Add(`<DescribeInstancesResponse><reservationSet>`)
	f.Add("\x00<")
	f.Fuzz(func(t *testing.T, text string) {
		var page instancePage
		if err := readAnswer([]byte(text), "DescribeInstances", &page); err == nil && !strings.Contains(text, "DescribeInstancesResponse") {
			t.Errorf("%q was taken for an answer", text)
		}
		for _, status := range []int{200, 400} {
			resp := &smithyhttp.Response{Response: &http.Response{StatusCode: status, Body: io.NopCloser(strings.NewReader(text))}}
			if raw, err := readResponse(resp, &middleware.Metadata{}); (err == nil) != (status == 200) || err == nil && string(raw) != text {
				t.Errorf("status %d: got %q, %v", status, raw, err)
			}
		}
	})
}
