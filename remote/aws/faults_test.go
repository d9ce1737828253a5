package aws

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/batch/types"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"fisub/remote"
	"fisub/remote/aws/mailbox"
	"fisub/remote/remotetest"
)

func script(t *testing.T, p *Provider, text string) *remote.Job {
	job := remotetest.Script(t, text, nil)
	job.Place = p.Places(1)[0]
	return job
}

func has(t *testing.T, what, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("%s: got %q, want %q in it", what, text, part)
		}
	}
}

// Refusals for quotas, permissions and missing resources keep AWS's words and leave nothing behind.
func TestDenied(t *testing.T) {
	c := newCloud(t)
	for _, k := range []struct {
		op   string
		a    answer
		code string
	}{
		{"submitjob", answer{400, "ClientException", "JobQueue arn:aws:batch:us-east-1:1:job-queue/gpus not found."},
			"no-such"},
		{"submitjob", answer{403, "AccessDeniedException",
			"User: arn:aws:iam::1:user/x is not authorized to perform: batch:SubmitJob"}, "credentials"},
		{"submitjob", answer{403, "ExpiredTokenException", "The security token included in the request is expired"},
			"credentials"},
	} {
		t.Run(k.a.code, func(t *testing.T) {
			p := newProvider(t, nil)
			c.fault(k.op, k.a)
			defer func() { delete(c.faults, k.op) }()
			job := script(t, p, `echo ran`)
			_, err := p.Submit(t.Context(), job, nil)
			remotetest.CheckDenied(t, err, k.code, "cloud: "+k.a.code+": "+k.a.message, "")
			nothingLeft(t, c, p)
		})
	}
	t.Run("NoSuchBucket", func(t *testing.T) {
		p := newProvider(t, map[string]any{"bucket": "other"})
		_, err := p.Submit(t.Context(), script(t, p, `echo ran`), nil)
		remotetest.CheckDenied(t, err, "no-such", "", "")
		remotetest.CheckDown(t, p, "no-such", "")
	})
}

// nothingLeft fails if the account holds a running host or any object of a job.
func nothingLeft(t *testing.T, c *cloud, p *Provider) {
	t.Helper()
	out, err := c.s3.ListObjectsV2(t.Context(), &s3.ListObjectsV2Input{Bucket: aws.String("results"),
		Prefix: aws.String("fisub/jobs/")})
	if err != nil || len(out.Contents) != 0 {
		t.Errorf("objects: got %d, %v", len(out.Contents), err)
	}
	if all, err := p.List(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("jobs: got %+v, %v", all, err)
	}
}

// The exit and the log say why a host did not start the job.
func TestEarlyEnd(t *testing.T) {
	c := newCloud(t)
	p := newProvider(t, nil)
	b := &bucket{c.s3, "results"}

	c.hold = true
	job := script(t, p, `echo ran`)
	h := remotetest.Submit(t, p, job)
	if err := b.put(t.Context(), "fisub/jobs/"+job.ID+"/boot",
		[]byte("url = \"http://"+c.gate.Address+"/results/none\"\noutput = \"program\"\n")); err != nil {
		t.Fatal(err)
	}
	c.release()
	_, exit := remotetest.Wait(t, p, h)
	if exit.End != remote.Lost {
		t.Errorf("got %+v, want lost", exit)
	}
	has(t, "exit", exit.Text, "last message: fisub: fetching the program: curl ended with 22")
	has(t, "log", remotetest.Log(t, p, h), "fisub: fetching the program")

	c.hold = true
	job = script(t, p, `echo ran`)
	h = remotetest.Submit(t, p, job)
	if err := os.WriteFile(filepath.Join(c.data, "fisub/store", job.Files[0].SHA256), []byte("#!/bin/sh\necho no\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	c.release()
	_, exit = remotetest.Wait(t, p, h)
	has(t, "a program with another content", exit.Text, "the program does not have its hash")
}

// A stored file with the wrong content is uploaded again, and a host that finds one refuses it.
func TestSpoiltStore(t *testing.T) {
	c := newCloud(t)
	p := newProvider(t, nil)
	b := &bucket{c.s3, "results"}
	job := script(t, p, `echo ran >&2`)
	file := job.Files[1]
	key := "fisub/store/" + file.SHA256
	other := bytes.Repeat([]byte("x"), int(file.Size))
	_, exit := remotetest.Wait(t, p, remotetest.Submit(t, p, job))
	if exit.Code != 0 {
		t.Fatalf("got %+v", exit)
	}
	if err := b.put(t.Context(), key, other); err != nil {
		t.Fatal(err)
	}
	c.hold = true
	job.ID = remotetest.NewID(t)
	var total int64
	h, err := p.Submit(t.Context(), job, func(_, all int64) { total = all })
	if err != nil || total != file.Size {
		t.Fatalf("sent again: got %d bytes, %v, want %d", total, err, file.Size)
	}
	defer p.Release(context.Background(), h)
	if err := b.put(t.Context(), key, other); err != nil {
		t.Fatal(err)
	}
	c.release()
	if _, exit := remotetest.Wait(t, p, h); exit.End != remote.Refused || !strings.Contains(exit.Text, "wrong hash") {
		t.Errorf("got %+v, want refused for the hash", exit)
	}
}

// No links are made if the clock is wrong: they would not work.
func TestClock(t *testing.T) {
	c := newCloud(t)
	target, err := url.Parse("http://" + c.gate.Address)
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target); r.Out.Host = r.In.Host },
		ModifyResponse: func(r *http.Response) error {
			r.Header.Set("Date", time.Now().Add(-10*time.Minute).UTC().Format(http.TimeFormat))
			return nil
		},
		Transport: &http.Transport{DisableKeepAlives: true},
	}
	server := httptest.NewServer(proxy)
	defer server.Close()
	p := newProvider(t, nil)
	p.Close()
	t.Setenv("AWS_ENDPOINT_URL_S3", server.URL)
	p = newProvider(t, nil)
	_, err = p.Submit(t.Context(), script(t, p, "true"), nil)
	remotetest.CheckDenied(t, err, "credentials", "wrong by ", "clock")
	nothingLeft(t, c, p)
}

// The stop object ends a job even if AWS does not end the host.
func TestStopOrder(t *testing.T) {
	c := newCloud(t)
	p := newProvider(t, nil)
	h := remotetest.Submit(t, p, script(t, p, `echo one; sleep 100`))
	const op = "terminatejob"
	c.fault(op, answer{403, "AccessDeniedException", "not authorized"})
	r := &remotetest.Recorder{Fail: func([]byte) error { return errors.New("seen") }}
	if _, err := p.Wait(t.Context(), h, 0, r); err == nil || err.Error() != "seen" {
		t.Fatalf("got %v", err)
	}
	remotetest.CheckDenied(t, p.Release(t.Context(), h), "credentials", "not authorized", "")
	if _, exit := remotetest.Wait(t, p, h); exit.End != remote.Cancelled {
		t.Errorf("got %+v, want cancelled", exit)
	}
	delete(c.faults, op)
}

// A job does not start if its links would expire before it could write its results.
func TestLinksExpire(t *testing.T) {
	c := newCloud(t)
	p := newProvider(t, nil)
	c.hold = true
	job := script(t, p, `echo ran`)
	h := remotetest.Submit(t, p, job)
	name := filepath.Join(c.data, "fisub/jobs", job.ID, "links.json")
	raw, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var links map[string]any
	if err := json.Unmarshal(raw, &links); err != nil {
		t.Fatal(err)
	}
	until, err := time.Parse(time.RFC3339, links["until"].(string))
	if want := time.Now().Add(job.Limit + extra + 2*time.Hour); err != nil || until.Before(want.Add(-time.Minute)) ||
		until.After(want) {
		t.Errorf("until: got %v, %v, want %v", until, err, want)
	}
	links["until"] = time.Now().Add(job.Limit - time.Second)
	raw, _ = json.Marshal(links)
	b := &bucket{c.s3, "results"}
	if err := b.put(t.Context(), "fisub/jobs/"+job.ID+"/links.json", raw); err != nil {
		t.Fatal(err)
	}
	c.release()
	r, exit := remotetest.Wait(t, p, h)
	if exit.End != remote.Refused || exit.Hint == "" || r.Stream() != "" {
		t.Errorf("got %+v, %q, want refused", exit, r.Stream())
	}
	has(t, "exit", exit.Text, "started too late")
}

// Credentials that expire before the job could be over are refused; later expiry shortens the links' life.
func TestCredentials(t *testing.T) {
	p := newProvider(t, nil)
	job := &remote.Job{Limit: time.Hour}
	life := func(left time.Duration) (time.Duration, error) {
		creds := aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: accessKey, SecretAccessKey: secretKey, CanExpire: true,
				Expires: time.Now().Add(left)}, nil
		})
		return p.life(t.Context(), &account{creds: creds}, job)
	}
	var no *remote.Denied
	if _, err := life(time.Hour); !errors.As(err, &no) || no.Code != "credentials" ||
		strings.Contains(err.Error(), "KEY") {
		t.Errorf("an hour: got %v, want denied", err)
	}
	if d, err := life(80 * time.Minute); err != nil || d > 80*time.Minute || d < 79*time.Minute {
		t.Errorf("80 minutes: got %v, %v", d, err)
	}
	if d, err := life(10 * time.Hour); err != nil || d != time.Hour+extra+2*time.Hour {
		t.Errorf("10 hours: got %v, %v", d, err)
	}
	t.Setenv("AWS_ACCESS_KEY_ID", "")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "")
	_, err := p.Check(t.Context())
	remotetest.CheckDenied(t, err, "credentials", "", "")
	_, err = p.Submit(t.Context(), script(t, p, "true"), nil)
	remotetest.CheckDenied(t, err, "credentials", "", "")
	t.Setenv("AWS_REGION", "")
	t.Setenv("AWS_DEFAULT_REGION", "")
	p = newProvider(t, nil)
	_, err = p.Check(t.Context())
	remotetest.CheckDenied(t, err, "no-such", "no AWS region", "")
	p = newProvider(t, map[string]any{"profile": "nobody"})
	_, err = p.Check(t.Context())
	remotetest.CheckDenied(t, err, "credentials", "nobody", "")
}

func TestCheck(t *testing.T) {
	c := newCloud(t)
	check := func(more map[string]any) remote.Host {
		t.Helper()
		p := newProvider(t, more)
		hosts, err := p.Check(t.Context())
		if err != nil || len(hosts) != 1 {
			t.Fatalf("got %+v, %v", hosts, err)
		}
		return hosts[0]
	}
	if h := check(nil); h.Err != nil || h.Name != "gpus" || h.State != "ready" ||
		h.Detail != "job definition fisub, revision 12, p6-b200.48xlarge up to 192 vCPUs in 2 subnets" {
		t.Errorf("got %+v", h)
	}
	for key, value := range map[string]string{"queue": "none", "job_definition": "none"} {
		h := check(map[string]any{key: value})
		var no *remote.Denied
		if !errors.As(h.Err, &no) || no.Code != "no-such" || h.State == "ready" || !strings.Contains(no.Text, "none") {
			t.Errorf("%s: got %+v", key, h)
		}
	}
	if len(c.hosts) != 0 {
		t.Errorf("hosts: got %d, want none", len(c.hosts))
	}
}

// A job of a dead client, without a folder, is found by its name.
func TestOrphans(t *testing.T) {
	c := newCloud(t)
	c.hold = true
	p := newProvider(t, nil)
	job := script(t, p, "echo one")
	if _, err := p.Submit(t.Context(), job, nil); err != nil {
		t.Fatal(err)
	}
	b := &bucket{c.s3, "results"}
	if err := b.clear(t.Context(), "fisub/jobs/"); err != nil {
		t.Fatal(err)
	}
	all, err := p.List(t.Context())
	if err != nil || len(all) != 1 || all[0].Job != job.ID {
		t.Fatalf("List: got %+v, %v", all, err)
	}
	remotetest.Release(t, p, all[0])
	nothingLeft(t, c, p)
}

// Every Wait ends, even if Batch's answers are unreadable or the links have expired. Release still ends the job.
func TestWaitEnds(t *testing.T) {
	c := newCloud(t)
	c.hold = true
	p := newProvider(t, nil)
	h := remotetest.Submit(t, p, script(t, p, "echo ran"))
	c.mu.Lock()
	c.garble = map[string]string{"listjobs": `{"jobSummaryList": [{"jobId": 22.0}]}`}
	c.mu.Unlock()
	_, err := p.Wait(t.Context(), h, 0, &remotetest.Recorder{})
	if err == nil || !strings.Contains(err.Error(), "unreadable reply from Batch") {
		t.Errorf("unreadable answers: got %v", err)
	}
	remotetest.Release(t, p, h)
	for _, host := range c.hosts {
		if !host.terminated {
			t.Errorf("%s was not ended", host.id)
		}
	}
	c.mu.Lock()
	c.garble = nil
	c.mu.Unlock()
	nothingLeft(t, c, p)

	h = remotetest.Submit(t, p, script(t, p, "echo ran"))
	var d data
	if err := json.Unmarshal(h.Data, &d); err != nil {
		t.Fatal(err)
	}
	if left := time.Until(d.Until); left < 2*time.Hour || left > 3*time.Hour {
		t.Errorf("the handle says %v, want limit, extra time and queue_limit from now", d.Until)
	}
	d.Until = time.Now().Add(-maxSkew)
	_, exit := remotetest.Wait(t, p, remote.NewHandle(Kind, h.Job, h.Place, d))
	if exit.End != remote.Lost || exit.Hint == "" {
		t.Errorf("got %+v", exit)
	}
	has(t, "exit", exit.Text, "its links expired", "Batch: queued")
}

// A job that Batch gave up or that somebody ended in the console differs from one whose host is gone.
func TestBatchReasons(t *testing.T) {
	for reason, want := range map[string]remote.End{
		"Essential container in task exited":                  remote.Lost,
		"Host EC2 (instance i-0123456789abcdef0) terminated.": remote.Lost,
		"Task failed to start":                                remote.Lost,
		"":                                                    remote.Lost,
		"Job attempt duration exceeded timeout":               remote.Limited,
		"released by fisub":                                   remote.Cancelled,
		"wrong kernel, stopped by hand":                       remote.Cancelled,
		"Canceled by JobStateTimeLimit action due to reason: CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY": remote.Refused,
	} {
		if exit := batchExit(&types.JobSummary{Status: types.JobStatusFailed}, reason); exit.End != want ||
			!strings.Contains(exit.Text, reason) {
			t.Errorf("%q: got %+v, want %s", reason, exit, want)
		}
	}
}

// Objects written by a host are validated.
func TestUntrustedHost(t *testing.T) {
	c := newCloud(t)
	p := newProvider(t, nil)
	c.hold = true
	job := script(t, p, "true")
	h := remotetest.Submit(t, p, job)
	b := &bucket{c.s3, "results"}
	out := "fisub/jobs/" + job.ID + "/out/"
	leave := func(name, content string) {
		t.Helper()
		if err := b.put(t.Context(), out+name, []byte(content)); err != nil {
			t.Fatal(err)
		}
	}
	leave("events/00000000000000000000", "one\ntwo\n")
	leave("events/00000000000000000004", "two\nthree\n")
	leave("events/0000000000000000000x", "no")
	leave("events/1", "no")
	leave("exit.json", `{"end":"won","code":0}`)
	r, exit := remotetest.Wait(t, p, h)
	if r.Stream() != "one\ntwo\nthree\n" || exit.End != remote.Lost {
		t.Errorf("got %q, %+v", r.Stream(), exit)
	}
	leave("exit.json", "{\"end\":\"refused\",\"text\":\"a\\u001b[2Jb\\nc\"}")
	if _, exit := remotetest.Wait(t, p, h); exit.End != remote.Refused || exit.Text != "a [2Jb c" {
		t.Errorf("got %+v", exit)
	}
	leave("events/00000000000000000099", "late")
	if _, err := p.Wait(t.Context(), h, 0, &remotetest.Recorder{}); err == nil ||
		!strings.Contains(err.Error(), "bytes 14 to 98 of the event stream are missing") {
		t.Errorf("a gap: got %v", err)
	}
	remotetest.CheckForeign(t, p, h, `{"queue":"q","bucket":"results","prefix":"../"}`, `{"queue":"q","bucket":"a/b"}`,
		`{"mode":"ec2","bucket":"results"}`)
}

func TestConfig(t *testing.T) {
	_, err := open("x", map[string]any{"bucket": "A/b", "prefix": "../a", "queue": "q", "job_definition": "a b",
		"slots":       int64(0),
		"queue_limit": "100h", "image": "debian"})
	remotetest.CheckFaults(t, err, `unknown key remote.x.image
remote.x.bucket: want the name of an S3 bucket, got "A/b"
remote.x.prefix: want letters, digits and "-._" with "/" between, got "../a/"
remote.x.job_definition: want the name or ARN of a job definition, got "a b"
remote.x.slots: want 1 to 1000, got 0
remote.x.queue_limit: want 1m0s to 84h0m0s, got 100h0m0s`)
	_, err = open("x", map[string]any{"slots": "4"})
	remotetest.CheckFaults(t, err, `missing key remote.x.bucket
missing key remote.x.queue
missing key remote.x.job_definition
remote.x.slots must be a whole number, not a string`)
	p := newProvider(t, map[string]any{"prefix": "", "slots": int64(4)})
	places := []remote.Place{{Host: "slot1", GPU: -1}, {Host: "slot2", GPU: -1}}
	if p.config.Prefix != "" || len(p.Places(9)) != 4 || !slices.Equal(p.Places(2), places) || len(p.Places(0)) != 0 {
		t.Errorf("got prefix %q, %d, %v and %d places", p.config.Prefix, len(p.Places(9)), p.Places(2), len(p.Places(0)))
	}
}

// The requests to AWS.
func TestRequests(t *testing.T) {
	job := &remote.Job{ID: "run-1", Limit: 30 * time.Minute, GPU: "b200", Labels: map[string]string{"run": "a b/c\n<é>"}}
	p := newProvider(t, nil)
	sub := p.submitInput(job, strings.Repeat("0", 64), "https://results/boot")
	size := 0
	for _, s := range append(sub.ContainerOverrides.Command, "FISUB_BOOT", "FISUB_JOB", "FISUB_PROGRAM", job.ID,
		strings.Repeat("0", 64)) {
		size += len(s)
	}
	// ECS accepts 8192 characters of overrides; a link with a session token has up to 3000.
	if size > 4000 {
		t.Errorf("overrides: got %d bytes, too many beside a link", size)
	}
	if *sub.Timeout.AttemptDurationSeconds != 45*60 || *sub.RetryStrategy.Attempts != 1 || *sub.JobName != "fisub_run-1" ||
		sub.Tags["fisub:prefix"] != "fisub/" ||
		len(sub.ContainerOverrides.ResourceRequirements) != 1 ||
		*sub.ContainerOverrides.ResourceRequirements[0].Value != "1" {
		t.Errorf("got %+v", sub)
	}
	if job.ID = "fisub-20260101-1"; *p.submitInput(job, "", "").JobName != job.ID {
		t.Error("the name has the prefix twice")
	}
	for name, want := range map[string]string{"fisub-20260101-1": "fisub-20260101-1", "fisub_run-1": "run-1",
		"other": "", "fisub": "", "fisub_A": ""} {
		if got := jobOf(name); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
	job.GPU = ""
	if sub := p.submitInput(job, "", ""); len(sub.ContainerOverrides.ResourceRequirements) != 0 {
		t.Error("a job without a GPU asks for one")
	}
}

// The links allow only their purpose, and only until they expire.
func TestLinks(t *testing.T) {
	c := newCloud(t)
	p := newProvider(t, nil)
	job := script(t, p, "true")
	b := &bucket{c.s3, "results"}
	if err := p.send(t.Context(), b, job, nil); err != nil {
		t.Fatal(err)
	}
	links := func(life time.Duration) (l mailbox.Links, boot string) {
		t.Helper()
		d := &data{Bucket: b.name, Prefix: "fisub/", job: job.ID}
		boot, err := p.post(t.Context(), b, d, job, job.Files[0].SHA256, life)
		if err != nil {
			t.Fatal(err)
		}
		raw, err := b.get(t.Context(), d.folder()+"links.json", 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(raw, &l); err != nil {
			t.Fatal(err)
		}
		return l, boot
	}
	do := func(method, url, kind string, body io.Reader) int {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, url, body)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", kind)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	defer http.DefaultClient.CloseIdleConnections()
	form := func(l mailbox.Links, key string, size int) int {
		t.Helper()
		var body bytes.Buffer
		w := multipart.NewWriter(&body)
		for k, v := range l.Form.Fields {
			if k == "key" {
				v = key
			}
			_ = w.WriteField(k, v)
		}
		part, _ := w.CreateFormFile("file", "file")
		_, _ = part.Write(make([]byte, size))
		w.Close()
		return do("POST", l.Form.URL, w.FormDataContentType(), &body)
	}
	l, boot := links(time.Hour)
	file := l.Files[job.Files[0].SHA256]
	out := "fisub/jobs/" + job.ID + "/out/"
	for _, k := range []struct {
		name string
		got  int
		want int
	}{
		{"the list", do("GET", boot, "", nil), 200},
		{"a file", do("GET", file, "", nil), 200},
		{"no order to stop yet", do("GET", l.Stop, "", nil), 404},
		{"a file that is written", do("PUT", file, "", strings.NewReader("x")), 403},
		{"a file that is deleted", do("DELETE", file, "", nil), 403},
		{"another file", do("GET", strings.Replace(file, job.Files[0].SHA256, job.Files[1].SHA256, 1), "", nil), 403},
		{"a result", form(l, out+"log", 10), 204},
		{"a result elsewhere", form(l, "fisub/store/"+job.Files[0].SHA256, 10), 403},
		{"a result that is too large", form(l, out+"log", mailbox.MaxPiece+1), 400},
	} {
		if k.got != k.want {
			t.Errorf("%s: got %d, want %d", k.name, k.got, k.want)
		}
	}
	l, boot = links(time.Second)
	for do("GET", boot, "", nil) != 403 { // boot was signed last
		time.Sleep(50 * time.Millisecond)
	}
	for _, got := range []int{do("GET", l.Stop, "", nil), form(l, out+"log", 10)} {
		if got != 403 {
			t.Errorf("after they expired: got %d, want 403", got)
		}
	}
}
