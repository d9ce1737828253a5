package aws

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/batch"

	"fisub/remote"
)

// newMoto starts moto's server and makes the stack of the template in it. It gives the server's address and the stack's
// outputs.
func newMoto(t *testing.T) (endpoint string, outputs map[string]string) {
	t.Helper()
	server, address := tool(t, "moto/bin/moto_server"), free(t)
	log, err := os.Create(filepath.Join(t.TempDir(), "moto.log"))
	if err != nil {
		t.Fatal(err)
	}
	host, port, _ := strings.Cut(address, ":")
	cmd := exec.Command(server, "-H", host, "-p", port)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		log.Close()
	})
	endpoint = "http://" + address
	defer http.DefaultClient.CloseIdleConnections()
	for begun := time.Now(); ; time.Sleep(200 * time.Millisecond) {
		// There is no docker: jobs of Batch end as they begin.
		resp, err := http.Post(endpoint+"/moto-api/config", "application/json",
			strings.NewReader(`{"batch": {"use_docker": false}}`))
		if err == nil {
			resp.Body.Close()
			break
		}
		if time.Since(begun) > time.Minute {
			text, _ := os.ReadFile(log.Name())
			t.Fatalf("moto does not start: %v: %s", err, text)
		}
	}
	python := exec.Command(tool(t, "moto/bin/python"), "testdata/stack.py", "../../scripts/aws/template.yaml", endpoint)
	var said bytes.Buffer
	python.Stderr = &said
	out, err := python.Output()
	if err != nil {
		t.Fatalf("the stack: %v: %s", err, said.String())
	}
	if err := json.Unmarshal(out, &outputs); err != nil {
		t.Fatal(err)
	}
	t.Setenv("AWS_ENDPOINT_URL", endpoint)
	return endpoint, outputs
}

// Another implementation of AWS understands what is asked of Batch, in the stack that users are to create.
func TestMoto(t *testing.T) {
	newCloud(t) // the bucket, as moto verifies no signature
	endpoint, out := newMoto(t)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)

	p := newProvider(t, map[string]any{"queue": out["Queue"], "job_definition": out["JobDefinition"]})
	defer p.Close()
	hosts, err := p.Check(t.Context())
	if err != nil || hosts[0].Err != nil || !strings.HasSuffix(hosts[0].Detail,
		", revision 1, p6-b200.48xlarge up to 192 vCPUs") {
		t.Fatalf("Check: got %+v, %v", hosts, err)
	}
	job := script(t, p, "true")
	job.GPU = "b200"
	h, err := p.Submit(t.Context(), job, nil)
	if err != nil {
		t.Fatal(err)
	}
	a, d, err := p.open(t.Context(), h)
	if err != nil {
		t.Fatal(err)
	}
	// moto gives vCPUs with a fraction, which the SDK does not read, so the job is looked at without it.
	req, err := http.NewRequestWithContext(t.Context(), "POST", endpoint+"/v1/describejobs",
		strings.NewReader(`{"jobs":["`+d.ID+`"]}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization",
		"AWS4-HMAC-SHA256 Credential=a/20260101/us-east-1/batch/aws4_request, SignedHeaders=host, Signature=0")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var found struct {
		Jobs []struct {
			JobName string
			Timeout struct{ AttemptDurationSeconds int }
			Tags    map[string]string
		}
	}
	if err := json.NewDecoder(resp.Body).Decode(&found); err != nil || len(found.Jobs) != 1 {
		t.Fatalf("got %+v, %v", found, err)
	}
	if j := found.Jobs[0]; j.JobName != "fisub-"+job.ID || j.Timeout.AttemptDurationSeconds != 960 ||
		j.Tags["fisub:run"] != "test" {
		t.Errorf("got %+v", j)
	}
	if all, err := p.List(t.Context()); err != nil || len(all) != 1 || all[0].Job != job.ID {
		t.Errorf("List: got %+v, %v", all, err)
	}
	if _, err := a.batch.TerminateJob(t.Context(), &batch.TerminateJobInput{JobId: &d.ID,
		Reason: aws.String("released by fisub")}); err != nil {
		t.Errorf("TerminateJob: %v", err)
	}
	p = newProvider(t, map[string]any{"queue": "none", "job_definition": out["JobDefinition"]})
	defer p.Close()
	var no *remote.Denied
	if _, err := p.Submit(t.Context(), script(t, p, "true"), nil); !errors.As(err, &no) || no.Code != "no-such" {
		t.Errorf("no such queue: got %v", err)
	}
}

// The template is sound in the eyes of AWS's own checker.
func TestTemplate(t *testing.T) {
	out, err := exec.Command(tool(t, "moto/bin/cfn-lint"), "--non-zero-exit-code", "informational",
		"../../scripts/aws/template.yaml").CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
