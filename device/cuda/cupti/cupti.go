//go:build !(cuda && linux && cgo)

// Package cupti collects CUPTI's activity records in this process. It needs the build tag cuda: here it is empty.
package cupti
