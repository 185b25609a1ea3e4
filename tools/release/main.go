// Command release builds a release. It builds container images without a container engine: Go's
// cross compiler, the files of two Debian packages, and OCI layouts.
//
//	release images [-out DIR] [-version V] [-arch amd64,arm64] [-programs DIR] [BINARY...]
//	release programs [-out DIR] [-version V] [-programs DIR] [BINARY...]
//	release push   [-from DIR] DOMAIN/PROJECT
//	release bundle [-from DIR] [-out FILE]
//	release cli    [-out DIR] -version V
//	release lock
//
// Images and archives are reproducible: of one commit and one base.lock they have the same bytes.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
)

// volcano is heddle-vc-scheduler: it replaces the image of this name in Volcano's chart.
const volcano = "vc-scheduler"

// The image of the node's daemons has a second program, which the device plugin copies to the
// node.
const node, mountsHook = "heddle-node", "heddle-cdi-hook"

// binaries are the images, each named for its program.
var binaries = []string{"heddle", node, "heddle-topo-master", "heddle-scheduler", volcano}

func main() {
	syscall.Umask(0o022) // The modes in images do not depend on the caller's.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return errors.New("want images, programs, push, bundle, cli or lock")
	}
	command, args := args[0], args[1:]
	set := flag.NewFlagSet(command, flag.ContinueOnError)
	root := set.String("root", ".", "the repository")
	switch command {
	case "images", "programs":
		return build(ctx, set, root, args)
	case "push":
		from := set.String("from", "dist/images", "directory of the OCI layouts")
		insecure := set.Bool("insecure", false, "the registry has no TLS")
		if err := set.Parse(args); err != nil {
			return err
		}
		if set.NArg() != 1 {
			return errors.New("push: want the registry and project, DOMAIN/PROJECT")
		}
		return push(ctx, *from, set.Arg(0), *insecure)
	case "bundle":
		from := set.String("from", "dist/images", "directory of the OCI layouts")
		out := set.String("out", "dist/heddle-images.run", "file to write")
		if err := set.Parse(args); err != nil {
			return err
		}
		return bundle(ctx, *root, *from, *out)
	case "cli":
		out := set.String("out", "dist/cli", "directory of the archives")
		version := set.String("version", "", "version of the release, such as v0.1.0")
		on := set.String("platforms", platforms, "GOOS/GOARCH, comma-separated")
		if err := set.Parse(args); err != nil {
			return err
		}
		if *version == "" {
			return errors.New("cli: want -version")
		}
		return cli(ctx, *root, *out, *version, strings.Split(*on, ","))
	case "lock":
		if err := set.Parse(args); err != nil {
			return err
		}
		return lock(ctx, filepath.Join(*root, lockFile))
	}
	return fmt.Errorf("%s: want images, programs, push, bundle, cli or lock", command)
}

// build builds images, or only the programs for this machine's architecture.
func build(ctx context.Context, set *flag.FlagSet, root *string, args []string) error {
	version := set.String("version", "", "version of the programs and tag of the images; empty: git describe")
	keep := set.String("programs", "", "directory that keeps linked programs; empty: all are linked again")
	out := set.String("out", "dist/"+set.Name(), "directory of the OCI layouts, or of the programs")
	arches, registry, newest := runtime.GOARCH, "heddle", false
	if set.Name() == "images" {
		set.StringVar(&arches, "arch", "amd64,arm64", "architectures, comma-separated")
		set.BoolVar(&newest, "newest", false, "for tests: the newest packages if the mirror no longer has the pinned ones")
		set.StringVar(&registry, "registry", registry, "prefix of the image's name for containerd's import of a layout")
	}
	if err := set.Parse(args); err != nil {
		return err
	}
	names := set.Args()
	if len(names) == 0 {
		names = binaries
	}
	for _, n := range names {
		if !slices.Contains(binaries, n) {
			return fmt.Errorf("%s: %s is not one of %s", set.Name(), n, strings.Join(binaries, ", "))
		}
	}
	if *version == "" {
		v, err := git(ctx, *root, "describe", "--tags", "--always", "--dirty")
		if err != nil {
			return err
		}
		*version = v
	}
	l, end, err := newLinker(*root, *keep, *version)
	if err != nil {
		return err
	}
	defer end()
	if set.Name() == "programs" {
		return programs(ctx, l, arches, *out, names)
	}
	b := builder{linker: l, out: *out, registry: registry, arches: strings.Split(arches, ","), newest: newest}
	return b.run(ctx, names)
}
