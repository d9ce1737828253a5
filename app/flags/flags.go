// Package flags handles the command line in general: flags after arguments, --json, and errors about flags. It knows
// no other flag of fisub.
package flags

import (
	"flag"
	"regexp"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"fisub/internal/plain"
	"fisub/internal/usage"
)

// JSON is the flag --json, with an optional value as in --json=final. It acts as soon as it is parsed.
type JSON struct {
	*cli.BoolFlag
	Mode func(value string) error // receives the value, "true" by default
}

func (f JSON) Apply(set *flag.FlagSet) error {
	set.Var(f, f.Name, "")
	return nil
}

func (f JSON) IsBoolFlag() bool { return true }
func (f JSON) Get() any         { return true }

func (f JSON) Set(value string) error { return f.Mode(value) }

// First moves the flags of a command before its arguments: the flag package treats everything after an argument as
// arguments. Words after "--" stay. pending is a last flag whose value is missing.
func First(program *cli.App, args []string) (sorted []string, pending cli.Flag) {
	flags, commands := program.Flags, program.Commands
	var first, arguments []string
	forwards := false // words after the first argument belong to another program
	rest := args[min(1, len(args)):]
	for len(rest) > 0 {
		word := rest[0]
		rest = rest[1:]
		if word == "--" {
			arguments = append(arguments, rest...)
			return slices.Concat(args[:1], first, []string{"--"}, arguments), nil
		}
		if strings.HasPrefix(word, "-") && word != "-" {
			first = append(first, word)
			if f := Named(flags, strings.TrimLeft(word, "-")); f != nil && TakeValue(f) {
				if len(rest) == 0 {
					pending = f
					break
				}
				first, rest = append(first, rest[0]), rest[1:]
			}
			continue
		}
		i := slices.IndexFunc(commands, func(c *cli.Command) bool { return c.HasName(word) })
		if i < 0 && forwards {
			return slices.Concat(args[:1], first, []string{"--", word}, rest), nil
		}
		if i < 0 || len(arguments) > 0 {
			arguments = append(arguments, word)
			continue
		}
		first = append(first, word)
		if commands[i].SkipFlagParsing {
			return slices.Concat(args[:1], first, rest), nil
		}
		forwards = Forwards(commands[i])
		flags, commands = commands[i].Flags, commands[i].Subcommands
	}
	return slices.Concat(args[:min(1, len(args))], first, arguments), pending
}

// Forwards reports whether everything after the first argument of c, flags included, belongs to another program.
func Forwards(c *cli.Command) bool { return strings.HasSuffix(c.ArgsUsage, "[ARGS...]") }

// Named returns the flag of that name, or nil.
func Named(flags []cli.Flag, name string) cli.Flag {
	i := slices.IndexFunc(flags, func(f cli.Flag) bool { return slices.Contains(f.Names(), name) })
	if i < 0 {
		return nil
	}
	return flags[i]
}

// TakeValue reports whether f takes a value.
func TakeValue(f cli.Flag) bool {
	d, ok := f.(cli.DocGenerationFlag)
	return ok && d.TakesValue()
}

// Errors of the flag package: an invalid value, an unknown flag, a missing value.
var (
	invalidValue = regexp.MustCompile(`^invalid (?:boolean )?value .* for (?:flag )?-([^:]+): `)
	unknownFlag  = regexp.MustCompile(`^flag provided but not defined: --?(.*)$`)
	noValue      = regexp.MustCompile(`^flag needs an argument: --?(.*)$`)
)

// Error explains an error of the flag package. It names a similar flag or the kind of value that the flag takes, else
// where to find the flags.
func Error(flags []cli.Flag, command string, err error) error {
	hint := command + " --help lists the flags"
	if m := unknownFlag.FindStringSubmatch(err.Error()); m != nil {
		var known []string
		for _, f := range flags {
			known = append(known, f.Names()...)
		}
		if near := plain.Nearest(m[1], known); len(near) > 0 {
			hint = "did you mean --" + strings.Join(near, " or --") + "?"
		}
		return usage.Errorf(hint, "unknown flag %s%s", strings.Repeat("-", min(len(m[1]), 2)), m[1])
	}
	if m := noValue.FindStringSubmatch(err.Error()); m != nil {
		return usage.Errorf(hint, "%s%s: missing value", strings.Repeat("-", min(len(m[1]), 2)), m[1])
	}
	if m := invalidValue.FindStringSubmatch(err.Error()); m != nil {
		switch Named(flags, m[1]).(type) {
		case *cli.DurationFlag:
			hint = "--" + m[1] + " takes a time with its unit, such as 90s or 5m, of less than 290 years"
		case *cli.IntFlag:
			hint = "--" + m[1] + " takes a whole number"
		case *cli.Float64Flag:
			hint = "--" + m[1] + " takes a number"
		case JSON:
			hint = "--json, or --json=final"
		}
	}
	return usage.Errorf(hint, "%w", err)
}

// Checked wraps action. It first rejects arguments that c does not take, and empty values of flags and arguments: an
// unset variable of a script must not count as a missing flag.
func Checked(c *cli.Command, action cli.ActionFunc) cli.ActionFunc {
	return func(ctx *cli.Context) error {
		for _, at := range ctx.Lineage() {
			for _, name := range at.LocalFlagNames() {
				if v, ok := at.Value(name).(string); ok && v == "" || slices.Contains(at.StringSlice(name), "") {
					return empty(strings.Repeat("-", min(len(name), 2))+name, "the value is empty")
				}
			}
		}
		args := ctx.Args().Slice()
		if Forwards(c) {
			args = args[:min(len(args), 1)]
		}
		if slices.Contains(args, "") {
			return empty(c.Name, "an argument is empty")
		}
		if err := takes(c, args); err != nil {
			return err
		}
		return action(ctx)
	}
}

func empty(place, fact string) error {
	return usage.Errorf("is a shell variable unset?", "%s: %s", place, fact)
}

// takes rejects arguments that c does not take. "A B [C...]" in its help means two or more.
func takes(c *cli.Command, args []string) error {
	for _, arg := range args {
		if strings.HasPrefix(arg, "-") && arg != "-" && !c.SkipFlagParsing {
			return usage.Errorf("put flags before --; a file whose name begins with a dash is ./"+arg,
				"%s: flag %s after --", c.Name, arg)
		}
	}
	words := strings.Fields(c.ArgsUsage)
	least := len(words) - strings.Count(c.ArgsUsage, "[")
	switch n := len(args); {
	case len(c.Subcommands) > 0 && n > 0:
		return usage.Unknown(c.Name+" command", args[0], Commands(c.Subcommands))
	case len(words) == 0 && n > 0:
		return usage.Errorf(c.HelpName+" --help", "%s: unexpected argument %q", c.Name, args[0])
	case n < least, n > len(words) && !strings.Contains(c.ArgsUsage, "..."):
		return usage.Errorf(c.HelpName+" "+c.ArgsUsage, "%s: got %s, want %s", c.Name, plain.Count(n, "argument"),
			c.ArgsUsage)
	}
	return nil
}

// Commands returns the names of the visible commands.
func Commands(commands []*cli.Command) []string {
	var names []string
	for _, c := range commands {
		if !c.Hidden {
			names = append(names, c.Name)
		}
	}
	return names
}
