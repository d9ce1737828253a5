//go:build linux && cgo && !amd64

package vgpu

type nativeRun struct{}

func translate([]inst, []int32, int32) []nativeRun { return nil }
