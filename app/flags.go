package app

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"fisub/app/flags"
	"fisub/app/outcome"
	"fisub/device"
	"fisub/internal/config"
	"fisub/internal/ui"
	"fisub/internal/usage"
	"fisub/project/setup"
)

// Flags write directly to the options of a command: each is declared once, with its destination. The destination's
// initial value is the default, and absent describes the default in the help. The word in backquotes names the value,
// also for completion.

func stringFlag(to *string, name, help, absent string) *cli.StringFlag {
	return &cli.StringFlag{Name: name, Usage: help, DefaultText: absent, Value: *to, Destination: to}
}

func boolFlag(to *bool, name, help string) *cli.BoolFlag {
	return &cli.BoolFlag{Name: name, Usage: help, Destination: to, DisableDefaultText: true}
}

// listFlag returns a flag that may be repeated.
func listFlag(to *[]string, name, help string) *cli.StringSliceFlag {
	return &cli.StringSliceFlag{Name: name, Usage: help, Action: func(_ *cli.Context, values []string) error {
		*to = values
		return nil
	}}
}

// countFlag returns a flag for a whole number of at least 1.
func countFlag(to *int, name, help, absent string) *cli.IntFlag {
	return &cli.IntFlag{Name: name, Usage: help, DefaultText: absent, Value: *to, Destination: to,
		Action: func(_ *cli.Context, n int) error {
			if n < 1 {
				return usage.Errorf("", "--%s: must be at least 1", name)
			}
			return nil
		}}
}

// timeFlag returns a flag for a time above zero.
func timeFlag(to *time.Duration, name, help, absent string) *cli.DurationFlag {
	return &cli.DurationFlag{Name: name, Usage: help, DefaultText: absent, Value: *to, Destination: to,
		Action: func(_ *cli.Context, d time.Duration) error {
			if d <= 0 {
				return usage.Errorf("", "--%s: must be above zero", name)
			}
			return nil
		}}
}

// numberFlag leaves *to unchanged if the flag is missing.
func numberFlag(to **float64, name, help, absent string) *cli.Float64Flag {
	return &cli.Float64Flag{Name: name, Usage: help, DefaultText: absent, Action: func(_ *cli.Context, x float64) error {
		*to = &x
		return nil
	}}
}

// workloadFlags select the workloads and how they are timed, here or on other hosts.
func workloadFlags(o *setup.Options) []cli.Flag {
	return []cli.Flag{
		stringFlag(&o.Set, "set", "run the workloads of `SET`", "bench.set of the config, else default"),
		seedFlag(&o.Seed),
		listFlag(&o.Where, "where", "run only workloads with `AXIS=N` or AXIS=N..M; may be repeated"),
		listFlag(&o.Prefixes, "workload", "run only workloads whose uuid begins with `PREFIX`; may be repeated"),
		countFlag(&o.Stride, "stride", "run the first of each `N` workloads", "all"),
		countFlag(&o.Sample, "sample", "run `N` workloads spread over the axes, from the smallest to the largest", "all"),
		countFlag(&o.Limit, "limit", "run the first `N` workloads", "all"),
		stringFlag(&o.Profile, "profile", "number of calls and trials, `PROFILE`: "+strings.Join(config.Profiles, ", "),
			"bench.profile of the config, else official"),
		stringFlag(&o.Timer, "timer", "time with `TIMER`: cupti (the contest's), events, or auto (cupti if available)",
			device.TimerAuto),
		timeFlag(&o.Timeout, "timeout", "give up on a workload after `TIME`", "the profile's: 5m"),
		timeFlag(&o.MaxTime, "max-time", "with profile thorough, time a workload for at most `TIME`", "10s"),
		stringFlag(&o.Arch, "arch", "compile for `ARCH`, such as sm_90a", "the GPU's"),
	}
}

func seedFlag(to *uint64) cli.Flag {
	return &cli.Uint64Flag{Name: "seed", EnvVars: []string{"POPCORN_SEED"},
		Usage:       "seed `N` of generated inputs; a seed gives the same values on every machine",
		DefaultText: "0", Destination: to}
}

// runFlags are the flags of all commands that run and time solutions on this machine.
func runFlags(o *setup.Options) []cli.Flag {
	return append([]cli.Flag{deviceFlag(&o.Device)}, append(workloadFlags(o),
		numberFlag(&o.MemoryLimit, "memory-limit", "end a worker that uses more than `GIB`; 0 means unlimited",
			"3/4 of the machine's memory"))...)
}

func deviceFlag(to *string) cli.Flag {
	return stringFlag(to, "device", "`DEVICE`: auto, cuda, cuda:N or emu", "auto")
}

func baselineFlag(to *string) cli.Flag {
	return stringFlag(to, "baseline", "measure speed-ups over `BASELINE`: reference, a solution, or none",
		"bench.baseline of the config, else none")
}

func solutionFlag(to *string) cli.Flag {
	return stringFlag(to, "solution", "use the packed solution in `FILE` instead of the sources", "")
}

func strictFlag(to *bool) cli.Flag {
	return boolFlag(to, "strict", "exit with 3 also if a workload passed with a finding")
}

// prebuiltFlag and sendFlag are for the jobs that fisub starts on other hosts.
func prebuiltFlag(to *string) cli.Flag {
	return &cli.StringFlag{Name: "prebuilt", Usage: "take compiled kernels from `DIR`", Hidden: true, Destination: to}
}

func sendFlag(to *bool) cli.Flag {
	return &cli.BoolFlag{Name: "send", Usage: "write all results to stdout", Hidden: true, Destination: to}
}

const globalCategory = "Global:"

// globalFlags may precede or follow the command's name. They act as soon as they are parsed, so that a command's own
// flags of the same names do not override earlier ones.
func (a *app) globalFlags() []cli.Flag {
	text := func(name, help, absent string, act func(string) error) cli.Flag {
		return &cli.StringFlag{Name: name, Usage: help, DefaultText: absent, Category: globalCategory,
			Action: func(_ *cli.Context, value string) error { return act(value) }}
	}
	set := func(to *string) func(string) error { return func(value string) error { *to = value; return nil } }
	yes := func(name, help string, to ...*bool) *cli.BoolFlag {
		return &cli.BoolFlag{Name: name, Usage: help, DisableDefaultText: true, Category: globalCategory,
			Action: func(_ *cli.Context, value bool) error {
				for _, t := range to {
					*t = value
				}
				return nil
			}}
	}
	return []cli.Flag{
		text("C", "run as if started in `DIR`", "", func(dir string) error {
			a.Dir = dir
			if a.typed != nil {
				return nil // completion rejects nothing
			}
			if st, err := os.Stat(dir); err != nil {
				return usage.Invalid(fmt.Errorf("-C: %w", err))
			} else if !st.IsDir() {
				return usage.Errorf("", "-C %s: not a folder", dir)
			}
			return nil
		}),
		text("config", "read the config from `FILE`", "config.toml", set(&a.Config)),
		text("dataset", "use the dataset in `DIR`", "$FIB_DATASET_PATH, else the embedded one", set(&a.Dataset)),
		flags.JSON{BoolFlag: yes("json", "print JSON on stdout; --json=final prints one object with the first fault"),
			Mode: a.jsonMode},
		text("color", "use colours `WHEN`: auto, always, never", "auto", func(when string) error {
			if !slices.Contains(colors, when) {
				return usage.Errorf("one of "+strings.Join(colors, ", "), "--color: unknown mode %q", when)
			}
			a.term.Color = ui.UseColor(when, a.stderr) && ui.UseColor(when, a.stdout)
			return nil
		}),
		yes("v", "print complete logs", &a.term.Verbose, &a.term.Wide),
		yes("q", "print only the result and errors", &a.term.Quiet),
	}
}

// jsonMode handles the value of --json.
func (a *app) jsonMode(value string) error {
	a.json = value == "true" || value == "final"
	switch value {
	case "final":
		a.final = cmp.Or(a.final, new(outcome.Outcome))
	case "true", "false":
		a.final = nil
	default:
		return errors.New("want true, false or final")
	}
	return nil
}

var colors = []string{"auto", "always", "never"}
