package main

import (
	"testing"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/providertest"
)

func TestShelf(t *testing.T) {
	providertest.Run(t, func(*testing.T) providertest.Subject {
		return providertest.Subject{Provider: &shelf{machines: map[nstance.InstanceID]item{}}}
	})
}
