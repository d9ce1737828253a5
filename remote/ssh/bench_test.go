package ssh_test

import (
	"crypto/rand"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"fisub/remote/remotetest"
	"fisub/remote/servertest"
	"fisub/remote/ssh/sshdtest"
)

// BenchmarkUpload uploads 100 MB. The metric is the ratio to sftp's time for the same file; the aim is below 2.
func BenchmarkUpload(b *testing.B) {
	f := newFleet(b, 1)
	sftp := sshdtest.Tool(b, "sftp")
	var ours, plain time.Duration
	for b.Loop() {
		big := filepath.Join(b.TempDir(), "big")
		content := make([]byte, 100_000_000)
		_, _ = rand.Read(content)
		servertest.Write(b, big, string(content))
		cmd := exec.Command(sftp, "-q", "-F", f.Config, "-b", "-", "h1")
		cmd.Stdin = strings.NewReader("put " + big + " " + filepath.Join(f.Daemons[0].Home, "plain") + "\n")
		begun := time.Now()
		if out, err := cmd.CombinedOutput(); err != nil {
			b.Fatalf("%v\n%s", err, out)
		}
		plain += time.Since(begun)

		p := f.provider(b, nil)
		job := script(b, p, "wc -c <big")
		job.Files = append(job.Files, remotetest.File(b, "big", big, false))
		begun = time.Now()
		h, err := p.Submit(b.Context(), job, nil)
		if err != nil {
			b.Fatal(err)
		}
		ours += time.Since(begun)
		if err := p.Release(b.Context(), h); err != nil {
			b.Fatal(err)
		}
		p.Close()
	}
	b.ReportMetric(ours.Seconds()/float64(b.N), "s/submit")
	b.ReportMetric(plain.Seconds()/float64(b.N), "s/sftp")
	b.ReportMetric(ours.Seconds()/plain.Seconds(), "x-of-sftp")
}

// BenchmarkStreamDelay measures how long after its writing an event arrives; the aim is below 200 ms.
func BenchmarkStreamDelay(b *testing.B) {
	f := newFleet(b, 1)
	p := f.closed(b, nil)
	h, err := p.Submit(b.Context(), script(b, p, `while :; do date +%s%N; sleep 0.05; done`), nil)
	if err != nil {
		b.Fatal(err)
	}
	defer p.Release(b.Context(), h)
	lines := make(chan delay, 1000)
	go p.Wait(b.Context(), h, 0, &stopwatch{lines: lines})
	<-lines
	var sum, most time.Duration
	n := 0
	for b.Loop() {
		d := <-lines
		sum, most, n = sum+time.Duration(d), max(most, time.Duration(d)), n+1
	}
	b.ReportMetric(float64(sum.Milliseconds())/float64(n), "ms-mean")
	b.ReportMetric(float64(most.Milliseconds()), "ms-most")
}

type delay time.Duration

// A stopwatch reads lines that are times in nanoseconds.
type stopwatch struct {
	remotetest.Recorder
	half  string
	lines chan delay
}

func (s *stopwatch) Write(p []byte) (int, error) {
	now := time.Now().UnixNano()
	s.half += string(p)
	for {
		line, rest, whole := strings.Cut(s.half, "\n")
		if !whole {
			return len(p), nil
		}
		s.half = rest
		if at, err := strconv.ParseInt(line, 10, 64); err == nil {
			s.lines <- delay(now - at)
		}
	}
}
