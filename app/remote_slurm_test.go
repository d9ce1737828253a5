package app

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"fisub/remote/slurm/slurmtest"
)

// A real Slurm, with and without munge, gives the verdicts of fisub local, without a table too. A cancelled job and a run
// resumed after a kill leave nothing in the queue.
func TestRemoteSlurm(t *testing.T) {
	t.Parallel()
	work := t.TempDir()
	b := newRemoteBench(t, fmt.Sprintf("[remote.cluster]\nprovider = \"slurm\"\nworkdir = %q\ngpu = \"none\"\njobs = 2\n"+
		"partition = \"gpu\"\ngres = \"gpu:b200:1\"\n", work))
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
		if got := placeCounts(r); got != "map[cluster: slot1:4 cluster: slot2:4]" {
			t.Errorf("munge %v: places: got %v", munge, got)
		}
		b.emptyQueue(c, work)
	}
	bare := newBareBench(t)
	bare.env = append(bare.env, "SLURM_CONF="+c.Conf)
	bare.fisub(0, "remote", "--gpu", "none", "--limit", "2")
	bare.whole(bare.last(), 2)
	if got, want := bare.last().Rows[0].Place, "slurm: slot1"; got != want {
		t.Errorf("place: got %q, want %q", got, want)
	}

	// One run is attached to after its client was killed while jobs ran. Another run is cancelled.
	client := b.start("remote", "--on", "cluster")
	b.awaitStream(work)
	if status := client.ends(os.Kill); status != -1 {
		t.Fatalf("killed too late: exit status %d\n%s", status, &client.out)
	}
	b.fisub(0, "remote", "attach", "last")
	b.whole(b.last(), 20)
	b.emptyQueue(c, work)
	b.fisub(0, "remote", "--on", "cluster", "--detach")
	b.awaitStream(work)
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
