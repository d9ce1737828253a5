package app

import (
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"fisub/remote/agent"
	"fisub/remote/slurm/slurmtest"
	"fisub/runs"
)

// A real Slurm, with and without munge, gives the verdicts of fisub local. Cancelled and refused jobs, and a run
// resumed after a kill, leave nothing in the queue.
func TestRemoteSlurm(t *testing.T) {
	t.Parallel()
	work := t.TempDir()
	table := func(name, more string) string {
		return fmt.Sprintf("[remote.%s]\nprovider = \"slurm\"\nworkdir = %q\ngpu = \"none\"\njobs = 2\n%s\n", name, work,
			more)
	}
	b := newRemoteBench(t, table("cluster", "partition = \"gpu\"\ngres = \"gpu:b200:1\"\n")+
		table("partition", "partition = \"gpux\"\n")+table("gres", "gres = \"gpu:h100:1\"\n"))
	b.share(work)
	b.fisub(0, "local", "--device", "emu", "--limit", "8")
	local := judgements(b.last())
	env := b.env
	var c *slurmtest.Cluster
	for _, munge := range []bool{false, true} {
		c = slurmtest.Start(t, slurmtest.Setup{Munge: munge})
		b.env = append(env[:len(env):len(env)], "SLURM_CONF="+c.Conf)
		if got := b.fisub(0, "remote", "hosts", "--on", "cluster"); !strings.Contains(got, "a job would start now") {
			t.Errorf("munge %v: hosts: got %s", munge, got)
		}
		b.fisub(0, "remote", "--on", "cluster", "--limit", "8")
		r := b.last()
		b.whole(r, 8)
		if got := judgements(r); fmt.Sprint(got) != fmt.Sprint(local) {
			t.Errorf("munge %v: verdicts: got %v, want those of fisub local %v", munge, got, local)
		}
		places := map[string]int{}
		for _, row := range r.Rows {
			places[row.Place]++
		}
		if fmt.Sprint(places) != "map[cluster: slot1:4 cluster: slot2:4]" {
			t.Errorf("munge %v: places: got %v", munge, places)
		}
		b.emptyQueue(c, work)
	}

	// Missing resources of the cluster give sbatch's message and a hint, and leave nothing.
	known, _ := runs.IDs(b.dir)
	for _, k := range []struct{ table, text, hint string }{
		{"partition", "fisub: partition: sbatch: invalid partition specified: gpux", "hint: the cluster's partitions: gpu"},
		{"gres", "fisub: gres: sbatch: Requested node configuration is not available",
			"hint: resources of the nodes, by partition: gpu gpu:b200:2"},
	} {
		b.fisub(1, "remote", "--on", k.table, "--limit", "1")
		if text := b.stderr.String(); !strings.Contains(text, k.text) || !strings.Contains(text, k.hint) {
			t.Errorf("no such %s: got\n%s", k.table, text)
		}
		b.emptyQueue(c, work)
	}
	if ids, _ := runs.IDs(b.dir); len(ids) != len(known) {
		t.Errorf("runs: got %v, want %v", ids, known)
	}

	// One run is attached to after its client was killed while jobs ran. Another run is cancelled.
	begun := func() {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
			if streams, _ := filepath.Glob(filepath.Join(agent.Jobs(work), "*", agent.EventsName)); len(streams) > 0 {
				return
			}
		}
		t.Fatal("no job begins")
	}
	cmd := b.command("remote", "--on", "cluster")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	begun()
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if status := cmd.ProcessState.Sys().(syscall.WaitStatus); !status.Signaled() {
		t.Fatalf("killed too late\n%s", &b.stderr)
	}
	b.fisub(0, "remote", "attach", "last")
	b.whole(b.last(), 20)
	b.emptyQueue(c, work)
	b.fisub(0, "remote", "--on", "cluster", "--detach")
	begun()
	b.fisub(0, "remote", "cancel", "last")
	b.emptyQueue(c, work)
}

// emptyQueue checks that neither Slurm nor the work folder holds a job.
func (b *remoteBench) emptyQueue(c *slurmtest.Cluster, work string) {
	b.t.Helper()
	if out := c.Run("squeue", "--noheader", "--states=PENDING,RUNNING,CONFIGURING,SUSPENDED",
		"--format=%j %T"); out != "" {
		b.t.Errorf("left in the queue: %s", out)
	}
	nothingIn(b.t, work)
}
