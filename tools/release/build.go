package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// images writes an OCI layout for each program, an index with an image for every architecture.
func images(ctx context.Context, l *linker, o *options, names []string) error {
	revision, err := git(ctx, l.root, "rev-parse", "HEAD")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return err
	}
	indexes := map[string]v1.ImageIndex{}
	for arch := range strings.SplitSeq(o.arch, ",") {
		base, err := layer(func(dir string) error {
			return execute(exec.CommandContext(ctx, filepath.Join(l.root, "tools/release/base.sh"), arch, dir))
		})
		if err != nil {
			return err
		}
		if err := l.link(ctx, arch, names); err != nil {
			return err
		}
		for _, name := range names {
			img, err := image(l, name, arch, revision, base)
			if err != nil {
				return fmt.Errorf("%s for %s: %w", name, arch, err)
			}
			if indexes[name] == nil {
				indexes[name] = mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
			}
			indexes[name] = mutate.AppendManifests(indexes[name], mutate.IndexAddendum{
				Add: img, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}},
			})
		}
	}
	for _, name := range names {
		dir := filepath.Join(o.out, name)
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
		path, err := layout.Write(dir, empty.Index)
		if err != nil {
			return err
		}
		err = path.AppendIndex(indexes[name], layout.WithAnnotations(map[string]string{
			"org.opencontainers.image.ref.name": l.version, "io.containerd.image.name": o.registry + "/" + name + ":" + l.version,
		}))
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		fmt.Printf("%s:%s %s\n", name, l.version, o.arch)
	}
	return nil
}

func git(ctx context.Context, root string, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, "git", append([]string{"-C", root}, args...)...).Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w", args[0], err)
	}
	return strings.TrimSpace(string(out)), nil
}

// image puts a program, and the second one of its image, on the base layer.
func image(l *linker, name, arch, revision string, base v1.Layer) (v1.Image, error) {
	top, err := layer(func(dir string) error {
		for _, program := range withHook([]string{name}) {
			if err := place(l.program(arch, program), filepath.Join(dir, "usr/local/bin", program)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	created := v1.Time{Time: epoch}
	img, err = mutate.Append(img,
		mutate.Addendum{Layer: base, History: v1.History{CreatedBy: "libc6 and ca-certificates of Debian", Created: created}},
		mutate.Addendum{Layer: top, History: v1.History{CreatedBy: name, Created: created}})
	if err != nil {
		return nil, err
	}
	c, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	c = c.DeepCopy()
	c.OS, c.Architecture, c.Created = "linux", arch, created
	c.Config = v1.Config{
		User: "65532:65532", Entrypoint: []string{"/usr/local/bin/" + name}, WorkingDir: "/",
		Env: []string{"PATH=/usr/local/bin:/usr/bin", "SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt"},
		Labels: map[string]string{
			"org.opencontainers.image.title": name, "org.opencontainers.image.version": l.version,
			"org.opencontainers.image.revision": revision, "org.opencontainers.image.licenses": "Apache-2.0",
			"org.opencontainers.image.source": "https://github.com/heddle-dev/heddle",
		},
	}
	return mutate.ConfigFile(img, c)
}

// epoch is the time of every file, and of the images, so that builds are reproducible.
var epoch = time.Unix(0, 0).UTC()

// archive writes a directory as a tar archive: sorted names, owner root, one time.
func archive(to io.Writer, dir string) error {
	// The directory is an entry too, of an image its root, and often a temporary one of mode 0700.
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	cmd := exec.Command("tar", "--sort=name", "--mtime=@0", "--owner=0", "--group=0", "--numeric-owner", "--format=posix",
		"--pax-option=delete=atime,delete=ctime,exthdr.name=%d/PaxHeaders/%f", "--hard-dereference",
		"-C", dir, "-cf", "-", ".")
	cmd.Stdout = to
	return execute(cmd)
}

// layer returns the directory that fill fills as a layer.
func layer(fill func(dir string) error) (v1.Layer, error) {
	dir, err := os.MkdirTemp("", "heddle-layer-*")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	var b bytes.Buffer
	if err := fill(dir); err != nil {
		return nil, err
	}
	if err := archive(&b, dir); err != nil {
		return nil, err
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil }
	// Without the cache it is compressed for its digest, and again to be written.
	return tarball.LayerFromOpener(open, tarball.WithCompressedCaching)
}
