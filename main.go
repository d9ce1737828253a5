// Command fisub takes a GPU kernel submission of the FlashInfer kernel contest from source to result: it checks it,
// runs its workloads on the local GPU or an emulation of it, and packs it.
package main

import (
	"os"

	"fisub/app"
)

func main() {
	os.Exit(app.Main(os.Args, os.Stdin, os.Stdout, os.Stderr))
}
