package app

import "github.com/urfave/cli/v2"

func (a *app) sealCommand() *cli.Command {
	var check bool
	return &cli.Command{
		Name:  "seal",
		Usage: "write down what judges the submission, so that a change of it is seen",
		Flags: []cli.Flag{boolFlag(&check, "check", "say what differs from the seal")},
		Action: func(c *cli.Context) error {
			s, err := a.load("")
			if err != nil {
				return err
			}
			found, err := a.Seal(c.Context, s, check, a.term)
			if err != nil {
				return err
			}
			for _, text := range found.Broken {
				a.term.Error("seal: "+text, "")
			}
			if err = a.result(found); found.Broken != nil {
				return shown(exitNotPassed)
			}
			return err
		},
	}
}
