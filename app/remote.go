package app

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"

	"fisub/bench"
	"fisub/bench/runs"
	"fisub/device"
	"fisub/device/cuda"
	"fisub/internal/cache"
	"fisub/internal/config"
	"fisub/internal/event"
	"fisub/internal/plain"
	"fisub/internal/trace"
	"fisub/internal/ui"
	"fisub/remote"
	"fisub/remote/aws"
	"fisub/remote/bundle"
	"fisub/remote/dispatch"
	"fisub/remote/loopback"
	"fisub/remote/modal"
	"fisub/remote/slurm"
	"fisub/remote/ssh"
)

// providers are the kinds of provider that fisub knows, each with its empty table.
var providers = map[string]func() remote.Config{
	aws.Kind:      func() remote.Config { return new(aws.Config) },
	loopback.Kind: func() remote.Config { return new(loopback.Config) },
	modal.Kind:    func() remote.Config { return new(modal.Config) },
	slurm.Kind:    func() remote.Config { return new(slurm.Config) },
	ssh.Kind:      func() remote.Config { return new(ssh.Config) },
}

// decodeTable reads a table [remote.NAME]. Its error is about the user's input.
func decodeTable(t *config.Table) (remote.Config, error) {
	kind := remote.Kind(t)
	fresh, ok := providers[kind]
	if !ok {
		names := strings.Join(slices.Sorted(maps.Keys(providers)), ", ")
		t.Fault("provider", "one of "+names, "unknown provider %q", kind)
		return nil, invalid(t.Err())
	}
	c := fresh()
	return c, invalid(remote.Decode(t, c))
}

// solutionName is the packed solution of a remote run, in its run folder, baselineDir the folder of its packed baseline there.
const (
	solutionName = "solution.json"
	baselineDir  = "baseline"
)

// defaultLimit is that of a job, where neither --limit-time nor the table has one.
const defaultLimit = 30 * time.Minute

func (a *app) remoteCommand() *cli.Command {
	names := strings.Join(slices.Sorted(maps.Keys(providers)), ", ")
	yes := &cli.BoolFlag{Name: "yes", Usage: "do not ask"}
	on := &cli.StringFlag{Name: "on", Usage: "the tables `NAME[,NAME...]` of the config", DefaultText: "the only one"}
	return &cli.Command{
		Name:  "remote",
		Usage: "run the submission's workloads on hosts with GPUs",
		Description: "Compiles the kernel here, takes it to the hosts that [remote.NAME] in the config describes (" + names + "),\n" +
			"runs the workloads there as fisub local does, and brings the results back into one run folder. Jobs go on when\n" +
			"this program ends: fisub remote attach follows them again.\n\n" +
			"   fisub remote --gpu b200 --on lab\n" +
			"   fisub remote --on lab --shards 4 --max-cost 5\n" +
			"   fisub remote --on cluster,cloud --race --detach\n" +
			"   fisub remote --gpu b200 --baseline warp-per-row\n" +
			"   fisub remote --gpu none --on loopback\n" +
			"   fisub remote attach last",
		Flags: append([]cli.Flag{
			&cli.StringFlag{Name: "gpu", Usage: "`GPU` of the hosts: " + strings.Join(bundle.GPUs(), ", ") + ", or none for the emulator", DefaultText: "gpu of the table"},
			on,
			&cli.IntFlag{Name: "shards", Usage: "split the workloads over at most `N` places", DefaultText: "all places of the tables"},
			&cli.BoolFlag{Name: "race", Usage: "send all workloads to each of --on, and keep the first that begins"},
			yes,
			&cli.BoolFlag{Name: "dry-run", Usage: "show what would run where, and end"},
			&cli.Float64Flag{Name: "max-cost", Usage: "do not start what may cost more than `USD`", DefaultText: "no limit"},
			&cli.BoolFlag{Name: "detach", Usage: "end when the hosts have taken the jobs"},
			&cli.DurationFlag{Name: "limit-time", Usage: "end a job on its host after `TIME`", DefaultText: "limit of the table, else 30m"},
			&cli.BoolFlag{Name: "busy", Usage: "run also on a GPU that another process uses"},
		}, append(workloadFlags(),
			&cli.StringFlag{Name: "solution", Usage: "run the packed solution in `FILE` instead of the sources"},
			baselineFlag(),
			&cli.StringFlag{Name: "arch", Usage: "compile for `ARCH`, such as sm_100a", DefaultText: "that of the GPU"},
			&cli.BoolFlag{Name: "strict", Usage: "exit with 3 also where a workload passed with a finding"})...),
		Action: a.remote,
		Subcommands: []*cli.Command{
			{Name: "ls", Usage: "list the remote runs of this folder, the newest first", Action: a.remoteLs,
				Description: "Reads the run folders and asks no host.\n\n   fisub remote ls"},
			{Name: "attach", Usage: "follow a run again, and bring its results back", ArgsUsage: "RUN", Action: a.remoteAttach,
				Description: "RUN is an id, its beginning, last or last~1.\n\n   fisub remote attach last"},
			{Name: "logs", Usage: "print the logs of a run's jobs", ArgsUsage: "RUN", Action: a.remoteLogs,
				Flags: []cli.Flag{&cli.BoolFlag{Name: "f", Usage: "go on until the jobs have ended"}}, Description: "   fisub remote logs -f last"},
			{Name: "cancel", Usage: "end the jobs of a run", ArgsUsage: "RUN", Action: a.remoteCancel,
				Description: "What has a verdict by then stays in the run folder.\n\n   fisub remote cancel last"},
			{Name: "gc", Usage: "end jobs that no run of this folder waits for", Flags: []cli.Flag{on, yes,
				&cli.BoolFlag{Name: "all", Usage: "also jobs that were begun elsewhere: from another folder or machine"}}, Action: a.remoteGC,
				Description: "Asks the hosts of all tables which jobs of yours they still hold.\n\n   fisub remote gc --on lab"},
			{Name: "hosts", Usage: "ask the hosts whether a job could run now", Flags: []cli.Flag{on}, Action: a.remoteHosts,
				Description: "   fisub remote hosts --on lab"},
		},
	}
}

// tables gives the tables [remote.NAME]; none where there is no config.
func tables(c *cli.Context) (map[string]*config.Table, error) {
	name := cmp.Or(globalString(c, "config"), config.Name)
	cfg, err := config.Load(path(c, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, invalid(err)
	}
	return cfg.Remote, nil
}

// openProvider opens the provider of the table name. The name of a kind stands for an empty table of that kind.
func openProvider(tables map[string]*config.Table, name string) (remote.Provider, remote.Common, error) {
	table, ok := tables[name]
	if _, kind := providers[name]; !ok && !kind {
		known := slices.Sorted(maps.Keys(tables))
		if near := plain.Nearest(name, known); len(near) > 0 {
			return nil, remote.Common{}, usage("did you mean "+near[0]+"?", "no table [remote.%s] in the config", name)
		}
		return nil, remote.Common{}, usage("docs/remote.md shows one; there are "+cmp.Or(strings.Join(known, ", "), "none")+", and loopback", "no table [remote.%s] in the config", name)
	}
	if !ok {
		table = config.NewTable("remote."+name, nil)
	}
	conf, err := decodeTable(table)
	if err != nil {
		return nil, remote.Common{}, err
	}
	p, err := conf.Open(name)
	return p, *conf.Shared(), invalid(err)
}

// chosen gives the tables [remote.NAME], and the names that --on has, else those of all tables: of the only one, unless all is set.
func chosen(c *cli.Context, all bool) (ts map[string]*config.Table, names []string, err error) {
	if ts, err = tables(c); err != nil {
		return nil, nil, err
	}
	if on := c.String("on"); on != "" {
		names = strings.Split(on, ",")
		for i, name := range names {
			if names[i] = strings.TrimSpace(name); names[i] == "" || slices.Contains(names[:i], names[i]) {
				return nil, nil, usage("write --on lab,cloud", "--on: %q", on)
			}
		}
		return ts, names, nil
	}
	names = slices.Sorted(maps.Keys(ts))
	switch {
	case len(names) == 0:
		return nil, nil, usage("docs/remote.md shows one; --on loopback runs on this machine", "no table [remote.NAME] in the config")
	case len(names) > 1 && !all:
		return nil, nil, usage("add --on "+names[0], "which of the tables %s?", strings.Join(names, ", "))
	}
	return ts, names, nil
}

// opened are providers by table.
type opened map[string]remote.Provider

func (o opened) close() {
	for _, p := range o {
		_ = p.Close()
	}
}

func (a *app) remote(c *cli.Context) (err error) {
	if err := unknownArgument(c); err != nil {
		return err
	}
	s, err := a.loadSubmission(c)
	if err != nil {
		return err
	}
	a.warn(s.warnings)
	ts, names, err := chosen(c, false)
	if err != nil {
		return err
	}
	open := opened{}
	defer open.close()
	commons := map[string]remote.Common{}
	var faults []error
	for _, name := range names {
		p, common, err := openProvider(ts, name)
		if err != nil {
			faults = append(faults, err)
			continue
		}
		open[name], commons[name] = p, common
	}
	if len(faults) > 0 {
		return errors.Join(faults...)
	}
	u, err := readSetup(c, s, nil)
	if err != nil {
		return err
	}
	plan, spec, err := a.plan(c, s, u, names, open, commons)
	if err != nil {
		return err
	}
	root, err := cache.Root()
	if err != nil {
		return err
	}
	folder := runs.New(s.root, plan.Run.ID)
	defer folder.Close()
	kept := false
	defer func() {
		if !kept {
			err = errors.Join(err, os.RemoveAll(folder.Path()))
			for dir := filepath.Dir(folder.Path()); dir != filepath.Clean(s.root) && os.Remove(dir) == nil; { // those that are empty now
				dir = filepath.Dir(dir)
			}
		}
	}()
	if err := keep(folder.Path(), &spec, s.sol, u.baseline); err != nil {
		return err
	}
	b, err := newBundle(c.Context, root, folder.Path(), spec)
	if err != nil {
		var build *device.BuildError
		if errors.As(err, &build) {
			a.term.Error(plain.Line("the solution does not compile for "+spec.Arch+": "+build.Text), "")
			fmt.Fprint(a.stderr, build.Log)
			return errNotPassed
		}
		return err
	}
	if plan.Bundle, err = json.Marshal(spec); err != nil {
		return err
	}
	a.showPlan(plan, spec, b.Size())
	if c.IsSet("max-cost") {
		most, known := plan.MostCost()
		if !known {
			return usage("set remote."+plan.Places[0].Table+".price, in USD for one GPU and hour", "--max-cost: not every place has a price")
		}
		plan.MaxCost = c.Float64("max-cost")
		if most > plan.MaxCost {
			return usage("lower --limit-time or --shards, or raise the cap", "--max-cost: the run may cost %s, more than %s", dollars(most), dollars(plan.MaxCost))
		}
	}
	if c.Bool("dry-run") {
		if globalBool(c, "json") {
			return writeJSON(a.stdout, plan)
		}
		return nil
	}
	if !a.agreed(c, "start?") {
		return nil
	}
	kept = true
	d := &dispatch.Dispatcher{Plan: plan, Folder: folder.Path(), Providers: open, Files: b.Files, Detach: c.Bool("detach")}
	err = a.dispatch(c, d, folder, nil)
	if len(plan.Active()) == 0 && !slices.ContainsFunc(plan.Jobs, func(j *dispatch.Job) bool { return j.Handle != nil }) {
		kept = false // nothing has run, and the folder says nothing that was not said
	}
	return err
}

// unknownArgument refuses a word that is no subcommand.
func unknownArgument(c *cli.Context) error {
	if c.NArg() == 0 {
		return nil
	}
	return unknown("remote command", c.Args().First(), commandNames(c.Command.Subcommands))
}

func newBundle(ctx context.Context, root, folder string, spec bundle.Spec) (*bundle.Bundle, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	var beside []*trace.Solution
	if spec.Arch != "" {
		beside = append(beside, bench.RooflineSolution())
	}
	return bundle.New(ctx, root, filepath.Join(folder, "remote", "files"), self, spec, beside...)
}

// keep writes the packed solutions of a run into its folder: a job that is submitted later needs them too.
func keep(folder string, spec *bundle.Spec, sol *trace.Solution, base *bench.Baseline) error {
	spec.Solution = filepath.Join(folder, solutionName)
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	if base != nil {
		if err := os.MkdirAll(filepath.Join(folder, baselineDir), 0o755); err != nil {
			return err
		}
		spec.Baseline = filepath.Join(folder, baselineDir, strings.TrimSuffix(filepath.Base(base.Name), ".json")+".json")
		if err := os.WriteFile(spec.Baseline, base.Solution.JSON(trace.Compact), 0o644); err != nil {
			return err
		}
	}
	return os.WriteFile(spec.Solution, sol.JSON(trace.Compact), 0o644)
}

// plan says what is to run where. It sets the kind and the baseline of u.
func (a *app) plan(c *cli.Context, s *submission, u *setup, names []string, open opened, commons map[string]remote.Common) (*dispatch.Plan, bundle.Spec, error) {
	var err error
	var spec bundle.Spec
	fail := func(err error) (*dispatch.Plan, bundle.Spec, error) { return nil, spec, err }
	plan := &dispatch.Plan{Version: 1, GPU: c.String("gpu"), Busy: c.Bool("busy"), Race: c.Bool("race"), Strict: c.Bool("strict")}
	for _, name := range names {
		gpu := commons[name].GPU
		if !c.IsSet("gpu") {
			if plan.GPU != "" && gpu != "" && gpu != plan.GPU {
				return fail(usage("add --gpu", "the tables name several GPUs: %s and %s", plan.GPU, gpu))
			}
			plan.GPU = cmp.Or(plan.GPU, gpu)
		}
		if limit := commons[name].Limit; plan.Limit == 0 || limit > 0 && limit < plan.Limit {
			plan.Limit = limit
		}
	}
	plan.Limit = cmp.Or(plan.Limit, defaultLimit)
	if c.IsSet("limit-time") {
		if plan.Limit = c.Duration("limit-time"); plan.Limit <= 0 {
			return fail(usage("", "--limit-time: must be above zero"))
		}
	}
	plan.GPU = strings.ToLower(plan.GPU)
	spec = bundle.Spec{Set: u.set, Args: []string{"--profile", u.profile.Name, "--timer", u.timer, "--timeout", u.profile.Timeout.String()}}
	if u.profile.Target > 0 {
		spec.Args = append(spec.Args, "--max-time", u.profile.MaxTime.String())
	}
	if !s.data.Embedded() {
		spec.Dataset = s.data.Root()
	}
	u.kind = "cuda"
	if plan.GPU == "none" {
		plan.GPU, u.kind = "", "emu"
	}
	if u.baseline, err = a.baseline(c, s, nil, u.kind); err != nil {
		return fail(err)
	}
	if u.kind == "cuda" {
		if spec.Arch, err = a.hostArch(c, s, u, plan.GPU); err != nil {
			return fail(err)
		}
	}
	spec.Args = append(spec.Args, "--device", u.kind)
	plan.Run = *u.describe(c.Context, s)
	shards := len(u.workloads)
	if c.IsSet("shards") {
		if shards = c.Int("shards"); shards < 1 {
			return fail(usage("", "--shards: must be at least 1"))
		}
		if plan.Race {
			return fail(usage("leave out one of them", "--shards and --race: a race sends all workloads to each place"))
		}
	}
	for _, name := range names {
		n := shards // of a further table too: they are needed where the first has trouble
		if c.IsSet("shards") {
			n -= len(plan.Places)
		}
		if plan.Race {
			n = 1
		}
		for _, place := range open[name].Places(max(0, n)) {
			plan.Places = append(plan.Places, dispatch.Place{Table: name, Price: commons[name].Price, Place: place})
		}
	}
	if len(plan.Places) == 0 {
		return fail(usage("", "the tables name no place to run on"))
	}
	return plan, spec, nil
}

// hostArch gives what is compiled here for a host's GPU: "" where nothing has to be, and nothing can be.
func (a *app) hostArch(c *cli.Context, s *submission, u *setup, gpu string) (string, error) {
	arch, known := bundle.Arch(gpu)
	switch {
	case gpu == "":
		return "", usage("add --gpu b200, or gpu = \"b200\" to the table; --gpu none runs on the emulator", "no GPU named")
	case !known:
		return "", usage("one of "+strings.Join(bundle.GPUs(), ", ")+", none", "--gpu: unknown GPU %q", gpu)
	}
	root, err := cache.Root()
	if err != nil {
		return "", err
	}
	if err := bundle.Ready(root, cuda.Built); err != nil {
		if s.sol.Spec.Compiled() || u.baseline != nil && u.baseline.Solution.Spec.Compiled() {
			return "", err
		}
		text, hint := explain(err)
		a.term.Warn("no share of the copy bandwidth, unless the hosts have a compiler: "+text, hint)
		return "", nil
	}
	return cmp.Or(c.String("arch"), arch), nil
}

func dollars(usd float64) string { return fmt.Sprintf("$%.2f", usd) }

func (a *app) showPlan(p *dispatch.Plan, spec bundle.Spec, size int64) {
	used := p.Used()
	a.term.Note("plan       %s of %s, set %s, profile %s", plain.Count(len(p.Run.Workloads), "workload"), p.Run.Definition, p.Run.Set, p.Run.Profile.Name)
	if b := p.Run.Baseline; b != nil {
		a.term.Note("baseline   %s", plain.Line(b.Name))
	}
	var where []string
	for _, place := range p.Places[:used] {
		where = append(where, place.String())
	}
	how := plain.Count(used, "job")
	if p.Race {
		how += " with all workloads each, the first that begins stays"
	}
	a.term.Note("where      %s (%s)", strings.Join(where, ", "), how)
	kernel := "the solution's sources"
	switch {
	case spec.Arch != "":
		kernel = "kernels for " + spec.Arch
	case p.GPU == "":
		kernel = "no kernel: the hosts emulate"
	}
	a.term.Note("bundle     %.1f MB: fisub, %s; what a host has already is not sent", float64(size)/1e6, kernel)
	a.term.Note("limit      %v for each job, kept on the host", p.Limit)
	if most, known := p.MostCost(); known {
		a.term.Note("cost       at most %s", dollars(most))
	} else {
		a.term.Note("cost       not known: no price in the table")
	}
}

// agreed asks on a terminal, unless --yes was given.
func (a *app) agreed(c *cli.Context, question string) bool {
	in, ok := a.stdin.(*os.File)
	if c.Bool("yes") || !ok || !ui.IsTerminal(in) {
		return true
	}
	fmt.Fprintf(a.stderr, "%s [Y/n] ", question)
	answer := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(in).ReadString('\n')
		answer <- line
	}()
	select {
	case line := <-answer:
		word := strings.ToLower(strings.TrimSpace(line))
		return line != "" && (word == "" || word == "y" || word == "yes")
	case <-c.Context.Done():
		fmt.Fprintln(a.stderr)
		return false
	}
}

// dispatch takes the run to its end, minding signals, and gives the error for the exit status.
func (a *app) dispatch(c *cli.Context, d *dispatch.Dispatcher, folder *runs.Folder, old *runs.Run) error {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(signals)
	if err := c.Context.Err(); err != nil {
		return err
	}
	a.minds = true
	view := a.term.Run()
	if globalBool(c, "json") {
		view = func(e event.Event) error {
			line, err := event.Marshal(e)
			if err == nil {
				_, err = a.stdout.Write(line)
			}
			return err
		}
	}
	if old != nil && old.Run != nil {
		before := *old
		before.Done = nil
		before.Emit(event.NewStream(view))
	}
	d.Old = old
	d.Events = event.NewStream(folder.Record, view)
	bar := &sendingBar{term: a.term}
	d.Progress = bar.set

	ctx, cancel := context.WithCancel(context.WithoutCancel(c.Context))
	defer cancel()
	over := make(chan struct{})
	verdict := make(chan bool, 1) // whether the jobs are to stop
	go func() {
		verdict <- a.mind(signals, over)
		signal.Stop(signals) // the next one ends the program at once
		cancel()
	}()
	result, err := d.Run(ctx)
	close(over)
	bar.finish()
	stop := <-verdict
	id := d.Plan.Run.ID
	attach := func() {
		active := d.Plan.Active()
		begun := slices.DeleteFunc(slices.Clone(active), func(j *dispatch.Job) bool { return j.Handle == nil })
		a.term.Note("%s left to run; follow with: fisub remote attach %s", plain.Count(len(begun), "job"), id)
		if n := len(active) - len(begun); n > 0 {
			a.term.Note("%s not begun yet: attach begins what is missing", plain.Count(n, "job"))
		}
		a.term.Note("end them with: fisub remote cancel %s", id)
	}
	if usd, known := d.Plan.Cost(); known && usd > 0 {
		a.term.Note("cost       about %s", dollars(usd))
	}
	switch {
	case errors.Is(err, dispatch.ErrDetached):
		if globalBool(c, "json") {
			return nil
		}
		attach()
		_, err := fmt.Fprintln(a.stdout, id)
		return err
	case errors.Is(err, context.Canceled) && stop:
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		a.term.Note("stopping %s", plain.Count(len(d.Plan.Active()), "job"))
		if err := d.Cancel(ctx); err != nil {
			return err
		}
		a.term.Error("interrupted: all jobs are stopped", "")
		return errInterrupted
	case errors.Is(err, context.Canceled):
		attach()
		return errInterrupted
	case err != nil:
		if len(d.Plan.Active()) > 0 {
			attach()
		}
		return err
	}
	a.term.Note("run folder %s", relative(folder.Path()))
	return verdictOf(result, d.Plan.Strict)
}

func verdictOf(r dispatch.Result, strict bool) error {
	switch {
	case r.Open > 0:
		return errLost
	case r.Missing > 0:
		return errShown
	case r.Failed > 0, strict && r.Findings > 0:
		return errNotPassed
	}
	return nil
}

// mind waits for a signal and tells whether the jobs are to stop; they are left alone where it returns false. On a terminal the
// first interrupt asks and the second one stops. Without one an interrupt stops: what was started by a script must not cost
// money when the script is ended. A terminal that is closed leaves the jobs running.
func (a *app) mind(signals <-chan os.Signal, over <-chan struct{}) (stop bool) {
	in, ok := a.stdin.(*os.File)
	terminal := ok && ui.IsTerminal(in)
	answers := make(chan string, 1)
	asked := false
	for {
		select {
		case <-over:
			return false
		case s := <-signals:
			switch {
			case s == syscall.SIGHUP:
				return false
			case !terminal || asked || s == syscall.SIGTERM:
				return true
			}
			asked = true
			fmt.Fprint(a.stderr, "\nstop the jobs, detach from them, or go on? Ctrl-C again stops [s/d/G] ")
			go func() {
				line, _ := bufio.NewReader(in).ReadString('\n')
				answers <- strings.ToLower(strings.TrimSpace(line))
			}()
		case word := <-answers:
			switch word {
			case "s", "stop":
				return true
			case "d", "detach":
				return false
			}
			asked = false
			a.term.Note("going on")
		}
	}
}

// A sendingBar shows the bytes of all bundles that are being sent.
type sendingBar struct {
	term        *ui.Terminal
	mu          sync.Mutex
	bar         *ui.Bar
	sent, total map[string]int64
	sum         int64
}

func (b *sendingBar) set(place string, sent, total int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.sent == nil {
		b.sent, b.total = map[string]int64{}, map[string]int64{}
	}
	b.sent[place], b.total[place] = sent, total
	var now, all int64
	for name := range b.total {
		now, all = now+b.sent[name], all+b.total[name]
	}
	if all != b.sum {
		b.bar.Finish()
		b.bar, b.sum = b.term.Bar(all, "sending", true), all
	}
	b.bar.Set(now)
	if now == all {
		b.bar.Finish()
	}
}

func (b *sendingBar) finish() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.bar.Finish()
}
