package nvml

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/heddle-dev/heddle/test/nvidia"
)

func TestWithSONAMEs(t *testing.T) {
	lib := "/usr/lib/" + triple() + "/"
	for _, tt := range []struct {
		name, dir string
		want      []string
	}{
		{"Debian", "usr/lib/" + triple(), []string{
			lib + "libcuda.so", lib + "libcuda.so.1", lib + "libcuda.so.550.54.15", "/usr/lib64/libcuda.so", "/usr/lib64/libcuda.so.1",
		}},
		{"Red Hat", "usr/lib64", []string{
			lib + "libcuda.so", lib + "libcuda.so.1", "/usr/lib64/libcuda.so", "/usr/lib64/libcuda.so.1", "/usr/lib64/libcuda.so.550.54.15",
		}},
		{"a place that no loader searches", "home/kubernetes/bin/nvidia/lib64", []string{
			"/home/kubernetes/bin/nvidia/lib64/libcuda.so", "/home/kubernetes/bin/nvidia/lib64/libcuda.so.1",
			"/home/kubernetes/bin/nvidia/lib64/libcuda.so.550.54.15", lib + "libcuda.so", lib + "libcuda.so.1",
			"/usr/lib64/libcuda.so", "/usr/lib64/libcuda.so.1",
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			root := t.TempDir()
			if _, err := nvidia.Install(t.Context(), root, tt.dir, "550.54.15"); err != nil {
				t.Fatal(err)
			}
			file := "/" + tt.dir + "/libcuda.so.550.54.15"
			options := []string{"ro", "nosuid", "nodev", "rbind", "rprivate"}
			got := withSONAMEs([]*specs.Mount{
				{HostPath: file, ContainerPath: file, Options: options},
				{HostPath: "/usr/bin/nvidia-smi", ContainerPath: "/usr/bin/nvidia-smi"},
			}, root)
			var paths []string
			for _, m := range got {
				if m.ContainerPath == "/usr/bin/nvidia-smi" {
					continue
				}
				if m.HostPath != file || !slices.Equal(m.Options, options) {
					t.Errorf("%+v", m)
				}
				paths = append(paths, m.ContainerPath)
			}
			slices.Sort(paths)
			if diff := cmp.Diff(tt.want, paths); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// nvcdi's hook links one library by a name that is not in it (discover/symlinks.go).
func TestIndirectGLX(t *testing.T) {
	mounts := withSONAMEs([]*specs.Mount{
		{HostPath: "/usr/lib64/libGLX_nvidia.so.550.54.15", ContainerPath: "/usr/lib64/libGLX_nvidia.so.550.54.15"},
	}, t.TempDir())
	if !slices.ContainsFunc(mounts, func(m *specs.Mount) bool { return m.ContainerPath == "/usr/lib64/libGLX_indirect.so.0" }) {
		t.Errorf("mounts %v", mounts)
	}
}

// Other files than libraries of the driver are left unchanged.
func TestWithoutSONAME(t *testing.T) {
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "libnone.so.550.54.15"), []byte("no ELF"), 0o600); err != nil {
		t.Fatal(err)
	}
	mounts := []*specs.Mount{
		{HostPath: "/libnone.so.550.54.15", ContainerPath: "/libnone.so.550.54.15"},
		{HostPath: "/libgone.so.550.54.15", ContainerPath: "/libgone.so.550.54.15"},
		{HostPath: "/firmware/gsp.bin", ContainerPath: "/firmware/gsp.bin"},
	}
	if diff := cmp.Diff(slices.Clone(mounts), withSONAMEs(mounts, root)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
