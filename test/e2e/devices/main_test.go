//go:build e2e && linux

// Package devices proves the device plugin on a real Kubernetes: the kubelet,
// containerd with CDI, the API server and the device cgroup of test/cluster.
// GPUs and HCAs are those of a machine file, given true character device nodes
// that have no driver: an open that the device cgroup lets through ends with
// ENXIO, one that it forbids with EPERM.
//
// Every rig is a cluster of its own, and one is up at a time. Tests share those of their kind,
// one after another; a test with another machine or configuration makes its own.
package devices

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/heddle-dev/heddle/test/cluster"
	"github.com/heddle-dev/heddle/test/cluster/image"
	"github.com/heddle-dev/heddle/test/install"
)

// reportImage is the image of test containers: see report/main.go.
const reportImage = "localhost/devices-report:1"

// heddle-node, and the daemons that it runs.
const (
	nodeProgram   = "heddle-node"
	pluginDaemon  = "device-plugin"
	labelerDaemon = "feature-discovery"
	workerDaemon  = "topo-worker"
	mpsDaemon     = "mps"
)

// built is what every rig needs, made once.
type built struct {
	dir string
	// installer has heddle's programs linked; nil where they came with [cluster.Prebuilt].
	installer *install.Installer
	node      string // heddle-node
	archive   string // reportImage
}

var once struct {
	built *built
	err   error
}

func TestMain(m *testing.M) {
	code, err := runAll(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "devices:", err)
		code = 1
	}
	os.Exit(code)
}

func runAll(m *testing.M) (code int, err error) {
	cache, err := cluster.DefaultCache()
	if err != nil {
		return 1, err
	}
	if missing := cluster.Preflight(cache); len(missing) > 0 {
		return 1, fmt.Errorf("this machine lacks what a cluster needs: %v", missing)
	}
	defer func() {
		err = errors.Join(err, closeRig())
		if once.built != nil {
			err = errors.Join(err, os.RemoveAll(once.built.dir))
		}
	}()
	return m.Run(), nil
}

// builds makes the plugin and the image, once per run.
func builds(ctx context.Context) (*built, error) {
	if once.built == nil && once.err == nil {
		once.built, once.err = build(ctx)
	}
	return once.built, once.err
}

func build(ctx context.Context) (*built, error) {
	dir, err := os.MkdirTemp("", "heddle-devices-build-")
	if err != nil {
		return nil, err
	}
	b := &built{
		dir: dir, node: filepath.Join(dir, nodeProgram), archive: filepath.Join(dir, "report.tar"),
	}
	if programs := cluster.Prebuilt(); programs != "" {
		if err := os.CopyFS(dir, os.DirFS(filepath.Join(programs, "heddle"))); err != nil {
			return nil, err
		}
		return b, b.pack(ctx, filepath.Join(dir, "report"))
	}
	if b.installer, err = install.New(ctx, dir, os.Stderr); err != nil {
		return nil, err
	}
	if err := b.installer.BuildAll(ctx, nodeProgram); err != nil {
		return nil, err
	}
	report := filepath.Join(dir, "report")
	cmd := exec.CommandContext(ctx, "go", "build", "-o", report, "./report")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build the report: %w\n%s", err, text)
	}
	return b, b.pack(ctx, report)
}

// pack makes the image of test containers.
func (b *built) pack(ctx context.Context, report string) error {
	return image.Pack(ctx, b.archive, image.Spec{
		Name: reportImage, Files: map[string]string{"/report": report}, Entrypoint: []string{"/report"},
	})
}
