// Package flags is about what stands on the command line: flags before arguments, --json, and what is wrong with a
// flag. It knows no flag of fisub but that one.
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

// JSON is the flag --json, which may have a value behind "=". It acts when it is found.
type JSON struct {
	*cli.BoolFlag
	Mode func(value string) error // takes the value: "true" where there is none
}

func (f JSON) Apply(set *flag.FlagSet) error {
	set.Var(f, f.Name, "")
	return nil
}

func (f JSON) IsBoolFlag() bool { return true }
func (f JSON) Get() any         { return true }

func (f JSON) Set(value string) error { return f.Mode(value) }

// First moves the flags of a command in front of its arguments: the flag package takes whatever follows an
// argument for an argument. What follows "--" stays. pending is a last flag that lacks its value.
func First(program *cli.App, args []string) (sorted []string, pending cli.Flag) {
	flags, commands := program.Flags, program.Commands
	var first, arguments []string
	forwards := false // what follows the first argument is another program's
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

// Forwards reports whether what follows the first argument of c is another program's, flags too.
func Forwards(c *cli.Command) bool { return strings.HasSuffix(c.ArgsUsage, "[ARGS...]") }

// Named is the flag of that name, or nil.
func Named(flags []cli.Flag, name string) cli.Flag {
	i := slices.IndexFunc(flags, func(f cli.Flag) bool { return slices.Contains(f.Names(), name) })
	if i < 0 {
		return nil
	}
	return flags[i]
}

// TakeValue tells whether f has one.
func TakeValue(f cli.Flag) bool {
	d, ok := f.(cli.DocGenerationFlag)
	return ok && d.TakesValue()
}

// How the flag package refuses the value of a flag, a flag that there is not, and one without its value.
var (
	invalidValue = regexp.MustCompile(`^invalid (?:boolean )?value .* for (?:flag )?-([^:]+): `)
	unknownFlag  = regexp.MustCompile(`^flag provided but not defined: --?(.*)$`)
	noValue      = regexp.MustCompile(`^flag needs an argument: --?(.*)$`)
)

// Error says of err, about the flags of the command line, what is meant: which flag is like it, what it takes, else
// where to look.
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
		return usage.Errorf(hint, "%s%s: its value is missing", strings.Repeat("-", min(len(m[1]), 2)), m[1])
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

// Checked is action, behind the refusal of arguments that c does not take, and of a flag or argument whose value is "":
// a variable that a script has not set must not count as not given.
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
	return usage.Errorf("is a variable of a script not set?", "%s: %s", place, fact)
}

// takes refuses arguments that c does not take: "A B [C...]" in its help stands for two or more.
func takes(c *cli.Command, args []string) error {
	for _, arg := range args {
		if strings.HasPrefix(arg, "-") && arg != "-" && !c.SkipFlagParsing {
			return usage.Errorf("put flags before --; a file whose name begins with a dash is ./"+arg,
				"%s: %s stands behind --", c.Name, arg)
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

// Commands are the names of those that are not hidden.
func Commands(commands []*cli.Command) []string {
	var names []string
	for _, c := range commands {
		if !c.Hidden {
			names = append(names, c.Name)
		}
	}
	return names
}
