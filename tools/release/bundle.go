package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// header is the shell script that unpacks what follows it.
//
//go:embed bundle.sh
var header string

// bundle writes one file for sites without a network: a shell script followed by an archive of the
// images, the chart and the program that pushes them. It needs a shell and tar, and pushes without
// a container engine.
func bundle(ctx context.Context, root, from, out string) error {
	images, err := layouts(from)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "heddle-bundle-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	var names []string
	for _, i := range images {
		names = append(names, i.name)
		if err := os.CopyFS(filepath.Join(dir, "images", i.name), os.DirFS(filepath.Join(from, i.name))); err != nil {
			return err
		}
	}
	if err := os.CopyFS(filepath.Join(dir, "chart"), os.DirFS(filepath.Join(root, "deploy/helm/heddle"))); err != nil {
		return err
	}
	for arch := range compilers { // This program pushes, on either architecture.
		err := goBuild(ctx, filepath.Join(root, "tools/release"), filepath.Join(dir, "push-"+arch), "-s -w -buildid=",
			[]string{"CGO_ENABLED=0", "GOOS=linux", "GOARCH=" + arch})
		if err != nil {
			return err
		}
	}
	slices.Sort(names)
	script := strings.NewReplacer("@IMAGES@", strings.Join(names, " "), "@TAG@", images[0].tag).Replace(header)
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(out, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.WriteString(f, script)
	if err := errors.Join(err, compressed(f, dir), f.Close()); err != nil {
		return fmt.Errorf("write %s: %w", out, err)
	}
	fmt.Println(out)
	return nil
}
