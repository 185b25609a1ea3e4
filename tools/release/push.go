package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// stored is the index of a layout and its tag.
type stored struct {
	name, tag string
	index     v1.ImageIndex
}

// layouts returns the images below a directory, by name.
func layouts(from string) ([]stored, error) {
	files, err := filepath.Glob(filepath.Join(from, "*", "oci-layout"))
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("no images in %s: make images", from)
	}
	var all []stored
	for _, file := range files {
		dir := filepath.Dir(file)
		top, err := layout.ImageIndexFromPath(dir)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", dir, err)
		}
		m, err := top.IndexManifest()
		if err == nil && len(m.Manifests) == 0 {
			err = errors.New("no image")
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", dir, err)
		}
		index, err := top.ImageIndex(m.Manifests[0].Digest)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", dir, err)
		}
		all = append(all, stored{filepath.Base(dir), m.Manifests[0].Annotations["org.opencontainers.image.ref.name"], index})
	}
	return all, nil
}

// push writes all images to a registry, with the credentials of docker's or podman's
// configuration. Existing layers are not sent again.
func push(ctx context.Context, from, registry string, insecure bool) error {
	images, err := layouts(from)
	if err != nil {
		return err
	}
	var options []name.Option
	if insecure {
		options = append(options, name.Insecure)
	}
	var errs []error
	for _, i := range images {
		ref, err := name.NewTag(registry+"/"+i.name+":"+i.tag, options...)
		if err == nil {
			err = remote.WriteIndex(ref, i.index, remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain))
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("push %s: %w", i.name, err))
			continue
		}
		fmt.Println(ref)
	}
	return errors.Join(errs...)
}
