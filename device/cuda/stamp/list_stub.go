//go:build !(cuda && linux && cgo)

package stamp

import "errors"

// GPUs lists the GPUs of this machine; in this build it fails.
func GPUs() ([]GPU, error) { return nil, errors.New("built without -tags cuda") }
