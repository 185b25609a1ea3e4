//go:build linux

package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// crioSocket is CRI-O's address on the node.
const crioSocket = "/run/crio/crio.sock"

// CRI-O's files in the state directory.
const (
	crioConfigFile = "crio.conf"
	crioPolicyFile = "policy.json"
)

// crioRunRoot is where its storage has what a reboot ends.
const crioRunRoot = "/run/crio/storage"

// crioModule has CRI-O, the C source of pinns, and copyimg, which brings an image into the
// storage of a CRI-O that has no registry.
const crioModule = "github.com/cri-o/cri-o"

// CRIO builds CRI-O, for [Options.CRIO], and returns the directory of its programs.
func (b Builder) CRIO(ctx context.Context) (string, error) {
	b, err := b.withDefaults()
	if err != nil {
		return "", err
	}
	dirs, err := b.buildParts(ctx, b.crioPart())
	return dirs[compCRIO], err
}

// crioPart builds without cgo, and so without SQLite in C. Without libseccomp CRI-O runs
// containers without a seccomp profile, which heddle has nothing to do with.
func (b Builder) crioPart() part {
	flags := []string{"-tags", "containers_image_openpgp containers_image_ostree_stub exclude_graphdriver_btrfs"}
	p := b.modulePart(compCRIO, crioCost, noCGO, "-s -w", flags, crioModule+"/cmd/crio", crioModule+"/test/copyimg")
	programs := p.build
	p.build = func(ctx context.Context, out string) error {
		if err := programs(ctx, out); err != nil {
			return err
		}
		list := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", crioModule)
		list.Dir, list.Env = b.moduleDir(compCRIO), append(os.Environ(), "GOWORK=off", "GOFLAGS=")
		source, err := b.output(ctx, list)
		if err != nil {
			return err
		}
		files, err := filepath.Glob(filepath.Join(strings.TrimSpace(source), "pinns", "src", "*.c"))
		if err != nil {
			return err
		}
		args := append([]string{"-std=c99", "-Os", "-static", "-o", filepath.Join(out, "pinns")}, files...)
		_, err = b.output(ctx, exec.CommandContext(ctx, "gcc", args...))
		return err
	}
	return p
}

// crioCost is of one core, when cold.
const crioCost = 7 * time.Minute

// CRIOMissing is what this machine lacks for [Options.CRIO] beside what [Preflight] lists.
func CRIOMissing() []Missing {
	var all []Missing
	for _, program := range []struct{ name, remedy string }{
		{"conmon", "apt-get install --no-install-recommends conmon"}, {"gcc", "apt-get install gcc libc6-dev"},
	} {
		if _, err := exec.LookPath(program.name); err != nil {
			all = append(all, Missing{"the program " + program.name, program.remedy})
		}
	}
	if Prebuilt() != "" {
		all = append(all, Missing{"Go, since HEDDLE_PREBUILT is set", "unset HEDDLE_PREBUILT where Go is"})
	}
	return all
}

// crioFiles are CRI-O's configuration and the policy for signatures without which it does not
// start: images of tests have no signature. A sandbox has no container: without CAP_SYS_RESOURCE
// runc cannot lower its oom_score_adj as CRI-O asks. Containers have MKNOD beside CRI-O's
// capabilities, as by containerd: tests make device nodes of their own.
func crioFiles(dir, programs, runc, cniPlugins string) []stateFile {
	config := strings.NewReplacer(
		"@STATE@", filepath.Join(dir, compCRIO),
		"@RUNROOT@", crioRunRoot,
		"@SOCKET@", crioSocket,
		"@PAUSE@", PauseImage,
		"@RUNC@", runc,
		"@PINNS@", filepath.Join(programs, "pinns"),
		"@POLICY@", filepath.Join(dir, crioPolicyFile),
		"@CNI_BIN@", cniPlugins,
		"@CNI_CONF@", filepath.Join(dir, "cni"),
	).Replace(crioTemplate)
	return []stateFile{
		{crioConfigFile, []byte(config)},
		{crioPolicyFile, []byte(`{"default": [{"type": "insecureAcceptAnything"}]}` + "\n")},
	}
}

const crioTemplate = `[crio]
root = "@STATE@/root"
runroot = "@RUNROOT@"
storage_driver = "overlay"
version_file = "/run/crio/version"
clean_shutdown_file = "@STATE@/clean.shutdown"
[crio.api]
listen = "@SOCKET@"
[crio.runtime]
default_runtime = "runc"
cgroup_manager = "cgroupfs"
pinns_path = "@PINNS@"
hooks_dir = []
default_capabilities = [
  "CHOWN", "DAC_OVERRIDE", "FSETID", "FOWNER", "SETGID", "SETUID", "SETPCAP", "NET_BIND_SERVICE", "KILL", "MKNOD",
]
drop_infra_ctr = true
disable_hostport_mapping = true
enable_criu_support = false
[crio.runtime.runtimes.runc]
runtime_path = "@RUNC@"
runtime_root = "/run/runc"
monitor_cgroup = "pod"
[crio.image]
pause_image = "@PAUSE@"
signature_policy = "@POLICY@"
[crio.network]
network_dir = "@CNI_CONF@"
plugin_dirs = ["@CNI_BIN@"]
`

// hideControllers has the node list the controllers that have a hierarchy, in place of all that the
// kernel has: by that list CRI-O limits huge pages, also where nothing is mounted to take the limit,
// and runc then starts no container.
func (c *Cluster) hideControllers(ctx context.Context) error {
	const list = "/proc/cgroups"
	text, err := os.ReadFile(list)
	if err != nil {
		return fmt.Errorf("list of cgroup controllers: %w", err)
	}
	mounted := mountedControllers(string(text))
	file := filepath.Join(c.state.Dir, compCRIO, "cgroups")
	if mounted == "" {
		return nil // cgroup v2, which has another list.
	}
	err = errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(mounted), 0o600))
	if err != nil {
		return fmt.Errorf("list of cgroup controllers: %w", err)
	}
	_, err = c.NodeExec(ctx, "mount", "--bind", file, list)
	return err
}

// mountedControllers are the lines of /proc/cgroups with a hierarchy: name, hierarchy, cgroups,
// enabled. Without any the list is empty.
func mountedControllers(text string) string {
	var own strings.Builder
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) == 4 && f[0][0] != '#' && f[1] != "0" {
			own.WriteString(line)
		}
	}
	return own.String()
}

// crioImport is the command that brings a docker-archive, its standard input, into the storage
// of CRI-O. A path would not do: the node does not see every one of the host.
func (s state) crioImport(name string) []string {
	return []string{
		filepath.Join(s.CRIO, "copyimg"), "--root", filepath.Join(s.Dir, compCRIO, "root"), "--runroot", crioRunRoot,
		"--storage-driver", "overlay", "--signature-policy", filepath.Join(s.Dir, crioPolicyFile),
		"--image-name", name, "--import-from", "docker-archive:/dev/stdin",
	}
}
