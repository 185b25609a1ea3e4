// Command release builds a release. It builds container images without a container engine: Go's
// cross compiler, the files of two Debian packages, and OCI layouts.
//
//	release images [-out DIR] [-version V] [-arch amd64,arm64] [-programs DIR] [BINARY...]
//	release programs [-out DIR] [-version V] [-programs DIR] [BINARY...]
//	release push   [-from DIR] DOMAIN/PROJECT
//
// pack.sh makes archives of the CLI, and one file of images and chart. Of one commit and the same Debian packages,
// images and archives have the same bytes.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
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

// options are the flags of all commands.
type options struct {
	root, from, out, version, arch, programs, registry string
	insecure                                           bool
}

func run(ctx context.Context, args []string) error {
	errUsage := errors.New("want images, programs or push")
	if len(args) == 0 {
		return errUsage
	}
	var o options
	set := flag.NewFlagSet(args[0], flag.ContinueOnError)
	set.StringVar(&o.root, "root", ".", "the repository")
	set.StringVar(&o.from, "from", "dist/images", "push: directory of the OCI layouts")
	set.StringVar(&o.out, "out", "", "directory; empty: below dist")
	set.StringVar(&o.version, "version", "", "version of the programs and tag of the images; empty: git describe")
	set.StringVar(&o.arch, "arch", "amd64,arm64", "images: architectures, comma-separated")
	set.StringVar(&o.programs, "programs", "", "directory that keeps linked programs; empty: in the user's cache")
	set.StringVar(&o.registry, "registry", "heddle", "images: prefix of the name for containerd's import of a layout")
	set.BoolVar(&o.insecure, "insecure", false, "push: the registry has no TLS")
	if err := set.Parse(args[1:]); err != nil {
		return err
	}
	switch args[0] {
	case "images", "programs":
		o.out = cmp.Or(o.out, "dist/"+args[0])
		return build(ctx, &o, args[0] == "images", set.Args())
	case "push":
		if set.NArg() != 1 {
			return errors.New("push: want the registry and project, DOMAIN/PROJECT")
		}
		return push(ctx, o.from, set.Arg(0), o.insecure)
	}
	return errUsage
}

// build builds images, or only the programs for this machine's architecture.
func build(ctx context.Context, o *options, asImages bool, names []string) error {
	if len(names) == 0 {
		names = binaries
	}
	for _, n := range names {
		if !slices.Contains(binaries, n) {
			return fmt.Errorf("%s is not one of %s", n, strings.Join(binaries, ", "))
		}
	}
	if o.version == "" {
		v, err := git(ctx, o.root, "describe", "--tags", "--always", "--dirty")
		if err != nil {
			return err
		}
		o.version = v
	}
	l, end, err := newLinker(o.root, o.programs, o.version)
	if err != nil {
		return err
	}
	defer end()
	if asImages {
		return images(ctx, l, o, names)
	}
	return programs(ctx, l, runtime.GOARCH, o.out, names)
}
