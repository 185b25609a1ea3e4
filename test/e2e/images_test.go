//go:build e2e && linux

package e2e

import (
	"crypto/x509"
	"debug/elf"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/test/install"
)

const cdiHook, vcScheduler = "heddle-cdi-hook", "vc-scheduler"

// released are the images of a release. But for vc-scheduler, which stands in Volcano's chart,
// the other tests install them in the real containerd.
func released() []string {
	return []string{"heddle", nodeName, daemon, pluginName, topoWorkerName, topoMasterName, schedulerName, vcScheduler}
}

// makeImages runs `release images` with the tag and registry of the images that the tests install.
func makeImages(t *testing.T, b *bed, out, arches string, names ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", append([]string{
		"run", ".", "images", "-root", b.installer.Root, "-out", out,
		"-arch", arches, "-version", install.Tag, "-registry", install.Registry,
	}, names...)...)
	cmd.Dir = filepath.Join(b.installer.Root, "tools/release")
	text, err := cmd.CombinedOutput()
	if strings.Contains(string(text), "the mirror has no more") {
		t.Skip("the pinned packages of the base are not on this mirror any more: release lock")
	}
	if err != nil {
		t.Fatalf("%v: %s", err, text)
	}
}

// TestImages: the images that the tests install are those of `make images`, are the same when
// their programs are linked again, and hold what they declare; every program starts with no
// other file than its image's. So it is for the other architecture: with heddle-node, and with
// all where HEDDLE_LONG_TESTS is set, since they are compiled once more.
func TestImages(t *testing.T) {
	b := shared(t)
	if _, err := exec.LookPath("dpkg-deb"); err != nil {
		t.Skip("the images' base is unpacked with dpkg-deb: ", err)
	}
	other := map[string]string{"amd64": "arm64", "arm64": "amd64"}[runtime.GOARCH]
	foreign := []string{nodeName}
	if os.Getenv("HEDDLE_LONG_TESTS") != "" {
		foreign = released()
	}
	fresh, again := t.TempDir(), t.TempDir()
	makeImages(t, b, fresh, "amd64,arm64", nodeName)
	makeImages(t, b, again, other, foreign...)
	if err := b.installer.Layouts(t.Context(), released()...); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{}
	for _, dir := range []string{b.installer.Layout(""), again} {
		for arch, i := range imagesOf(t, dir, nodeName) {
			want[arch] = i.manifest
		}
	}
	got := map[string]string{}
	for arch, i := range imagesOf(t, fresh, nodeName) {
		got[arch] = i.manifest
	}
	if diff := cmp.Diff(want, got); diff != "" || len(got) != 2 {
		t.Errorf("two builds of the images for %d architectures differ (-first +second):\n%s", len(got), diff)
	}
	for dir, names := range map[string][]string{b.installer.Layout(""): released(), again: foreign} {
		for _, name := range names {
			for arch, of := range imagesOf(t, dir, name) {
				t.Run(name+"-"+arch, func(t *testing.T) {
					of.inspect(t)
					inspectBill(t, filepath.Join(dir, name+"-"+arch+".spdx.json"), name)
				})
			}
		}
	}
}

// The parts of OCI's index, manifest and configuration that are looked at.
type (
	blob struct {
		Digest   string
		Platform struct{ Architecture string }
	}
	blobs struct {
		Manifests, Layers []blob
		Config            blob
	}
	imageConfig struct {
		Architecture string
		Config       struct {
			User       string
			Entrypoint []string
			Labels     map[string]string
		}
	}
	ociImage struct {
		name, arch, manifest string
		config               imageConfig
		layers               []string // files
	}
)

// imagesOf reads the layout of a name, by architecture.
func imagesOf(t *testing.T, dir, name string) map[string]ociImage {
	t.Helper()
	dir = filepath.Join(dir, name)
	path := func(b blob) string { return filepath.Join(dir, "blobs", strings.Replace(b.Digest, ":", "/", 1)) }
	var top, index blobs
	decodeFile(t, filepath.Join(dir, "index.json"), &top)
	decodeFile(t, path(top.Manifests[0]), &index)
	all := map[string]ociImage{}
	for _, d := range index.Manifests {
		var manifest blobs
		decodeFile(t, path(d), &manifest)
		i := ociImage{name: name, arch: d.Platform.Architecture, manifest: d.Digest}
		decodeFile(t, path(manifest.Config), &i.config)
		for _, l := range manifest.Layers {
			i.layers = append(i.layers, path(l))
		}
		all[i.arch] = i
	}
	return all
}

// inspect checks what an image declares, and each of its programs.
func (i *ociImage) inspect(t *testing.T) {
	t.Helper()
	const programs = "/usr/local/bin"
	c := i.config.Config
	if i.config.Architecture != i.arch || c.User != "65532:65532" ||
		c.Labels["org.opencontainers.image.title"] != i.name ||
		!slices.Equal(c.Entrypoint, []string{programs + "/" + i.name}) {
		t.Errorf("configuration: %+v", i.config)
	}
	root := t.TempDir()
	for _, l := range i.layers {
		if out, err := exec.CommandContext(t.Context(), "tar", "-xzf", l, "-C", root).CombinedOutput(); err != nil {
			t.Fatalf("tar: %v: %s", err, out)
		}
	}
	// The user of the programs has to reach them; a test's directory is root's.
	if err := os.Chmod(root, 0o755); err != nil {
		t.Fatal(err)
	}
	authorities, err := os.ReadFile(filepath.Join(root, "etc/ssl/certs/ca-certificates.crt"))
	if pool := x509.NewCertPool(); err != nil || !pool.AppendCertsFromPEM(authorities) {
		t.Errorf("no certificate authorities: %v", err)
	}
	want := []string{i.name}
	if i.name == pluginName || i.name == nodeName {
		want = []string{cdiHook, i.name}
		slices.Sort(want)
	}
	files, err := os.ReadDir(filepath.Join(root, programs))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range files {
		got = append(got, f.Name())
		inspectProgram(t, filepath.Join(root, programs, f.Name()), i.arch)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("programs (-want +got):\n%s", diff)
	}
	i.start(t, root, programs+"/"+i.name)
}

func inspectProgram(t *testing.T, file, arch string) {
	t.Helper()
	program, err := elf.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	if want := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[arch]; program.Machine != want {
		t.Errorf("%s is for %s", filepath.Base(file), program.Machine)
	}
	// The runtime of a node has neither the image's C library nor its loader.
	needs, err := program.ImportedLibraries()
	if filepath.Base(file) == cdiHook && (err != nil || len(needs) > 0) {
		t.Errorf("%s needs %v, %v", cdiHook, needs, err)
	}
}

// start runs the program as its user with the image's files alone; for another architecture
// with QEMU, where that is installed.
func (i *ociImage) start(t *testing.T, root, program string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, "--version")
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: 65532, Gid: 65532}}
	cmd.Dir = "/"
	if i.arch != runtime.GOARCH {
		qemu, err := exec.LookPath("qemu-" + map[string]string{"arm64": "aarch64", "amd64": "x86_64"}[i.arch] + "-static")
		if err != nil {
			t.Logf("not run: %v", err)
			return
		}
		cmd = exec.CommandContext(t.Context(), qemu, "-L", root, root+program, "--version")
	}
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), install.Tag) {
		t.Errorf("%s --version: %v: %s", program, err, out)
	}
}

// inspectBill looks for modules and packages in an image's bill of materials.
func inspectBill(t *testing.T, file, name string) {
	t.Helper()
	var bill struct {
		Packages []struct{ Name string }
	}
	decodeFile(t, file, &bill)
	want := []string{"libc6", "ca-certificates", name}
	switch name {
	case pluginName, nodeName:
		// The second is the hook's.
		want = append(want, "github.com/NVIDIA/go-nvml", "github.com/cyphar/filepath-securejoin")
	case daemon:
		want = append(want, "github.com/NVIDIA/go-nvml")
	}
	for _, want := range want {
		if !slices.ContainsFunc(bill.Packages, func(p struct{ Name string }) bool { return p.Name == want }) {
			t.Errorf("the bill of materials lacks %s", want)
		}
	}
}

func decodeFile(t *testing.T, file string, to any) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, to); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
}
