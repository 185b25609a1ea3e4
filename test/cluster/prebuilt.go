//go:build linux

package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// prebuiltList is the file of a directory that [Pack] wrote; its paths are relative to it.
const prebuiltList = "binaries.json"

// Prebuilt is $HEDDLE_PREBUILT: a directory that [Pack] wrote, from which a machine without
// Go runs a cluster. It is empty where the variable is.
func Prebuilt() string { return os.Getenv("HEDDLE_PREBUILT") }

// Pack copies what a cluster runs to a directory that another machine can have.
func Pack(b Binaries, dir string) error {
	packed := Binaries{
		Kubernetes: "kubernetes", Containerd: "containerd", CNI: "cni",
		Runc: "runc/runc", Kwok: "kwok/kwok", Node: "node/clusternode",
	}
	var errs []error
	for from, to := range map[string]string{
		b.Kubernetes: packed.Kubernetes, b.Containerd: packed.Containerd, b.CNI: packed.CNI,
		filepath.Dir(b.Runc): "runc", filepath.Dir(b.Kwok): "kwok", filepath.Dir(b.Node): "node",
	} {
		errs = append(errs, os.CopyFS(filepath.Join(dir, to), os.DirFS(from)))
	}
	for _, archive := range b.Images {
		name := filepath.Join("images", filepath.Base(archive))
		packed.Images = append(packed.Images, name)
		errs = append(errs, copyFile(archive, filepath.Join(dir, name)))
	}
	text, err := json.MarshalIndent(packed, "", "  ")
	errs = append(errs, err, os.WriteFile(filepath.Join(dir, prebuiltList), text, 0o644))
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("pack programs: %w", err)
	}
	return nil
}

func copyFile(from, to string) error {
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), os.WriteFile(to, text, 0o644))
}

// readPrebuilt is what [Pack] wrote, with absolute paths.
func readPrebuilt(dir string) (Binaries, error) {
	var b Binaries
	text, err := os.ReadFile(filepath.Join(dir, prebuiltList))
	if err != nil {
		return b, fmt.Errorf("programs of HEDDLE_PREBUILT: %w", err)
	}
	if err := json.Unmarshal(text, &b); err != nil {
		return b, fmt.Errorf("parse %s: %w", filepath.Join(dir, prebuiltList), err)
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return b, fmt.Errorf("programs of HEDDLE_PREBUILT: %w", err)
	}
	paths := []*string{&b.Kubernetes, &b.Containerd, &b.CNI, &b.Runc, &b.Kwok, &b.Node}
	for i := range b.Images {
		paths = append(paths, &b.Images[i])
	}
	for _, p := range paths {
		*p = filepath.Join(dir, *p)
	}
	return b, nil
}
