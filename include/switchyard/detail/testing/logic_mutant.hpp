// Logic mutants: one line of a kernel gone wrong, to see that the tests would find it
// (tests/ep/mutant_test.cpp). A kernel has one only if its FixedShape says `kMutant`; no shape of the library
// does, and then nothing of it is compiled. Mutants of the memory order are in testing/order_mutant.hpp:
// those need no change to a kernel.
#pragma once

#include <concepts>

#include "switchyard/detail/base/macros.hpp"

namespace switchyard {

enum class LogicMutant {
  kSlotOffByOne,               // dispatch_async: a message goes into the slot behind its own
  kPaddingDispatched,          // dispatch_async: padding is taken for expert 0
  kRepeatsSentEach,            // dispatch_async: a repeated id is a message of its own
  kStageNotWaitedFor,          // dispatch_async: a stage is rewritten while bulk copies may still read it
  kSignalsBeforeFinished,      // dispatch_async: the watcher does not wait for the copies
  kReservedNotPutBack,         // dispatch_async: the next step's slots go on where this one's ended
  kFinishedNotPutBack,         // dispatch_async: the next step begins with this one's count
  kDispatchIgnoresPoison,      // dispatch_async: starts although an earlier step broke
  kReceiveSlotOffByOne,        // dispatch_wait: a message is read from the slot behind its own
  kRowsWithoutRankOffset,      // dispatch_wait: every source rank's rows begin where the expert's do
  kCellsResetTooEarly,         // dispatch_wait: no election, every block that has read the cells resets them
  kCounterOverlaps,            // combine_async: its count of blocks lies in region B
  kFirstBlockSignals,          // combine_async: the first block to be done signals, not the last
  kExtraRowsNotPutBack,        // combine_async: region C stays as the step left it
  kCombineIgnoresPoison,       // combine_async: starts although an earlier step broke
  kPaddingCombined,            // combine_wait: padding is added like any row
  kWeightsReversed,            // combine_wait: choice k is weighted as choice top_k - 1 - k
  kCombineCellsResetTooEarly,  // combine_wait: as kCellsResetTooEarly
  kSuccessorAdmittedAtOnce,    // any kernel: lets the next launch in before it waits for a peer

  // Of the direct protocol.
  kAssignedWithoutRanksBefore,   // dispatch_async: every rank's rows of an expert begin where the expert's do
  kAssignedWithoutBlocksBefore,  // dispatch_async: every block's rows begin where the rank's do
  kCountsNotAwaited,             // dispatch_async: takes the counts as it finds them
  kCapacityOffByOne,             // dispatch_async: a step may have one row more than the capacity
  kCapacityOfOwnRankOnly,        // dispatch_async: looks at no other rank's room
  kDirectStageNotWaitedFor,      // dispatch_async: as kStageNotWaitedFor
  kLoadsNotDrained,              // dispatch_async: leaves while tokens are on their way into its stages
  kFirstBlockReady,              // dispatch_async: the first block to be done signals, not the last
  kRowsNotAwaited,               // dispatch_wait: does not wait for the rows
  kStepNotCounted,               // dispatch_wait: the next step has the same number
  kSkippedStepCombined,          // combine_async, combine_wait: take no notice that the step was skipped
  kOutputNotAwaited,             // combine_wait: does not wait for the experts
  kFirstBlockHasRead,            // combine_wait: tells the owners that their rows were read when one block has
  kReadersNotAwaited,            // combine_wait: ends although others still read this rank's rows
  kPaddingPulled,                // combine_wait: padding is added like any row
  kCombineWaitIgnoresPoison,     // combine_wait: starts although an earlier step broke
  kSkipForgotten,                // dispatch_async: a step that is opened again was not skipped

  // Of its scales, where their tensor interleaves rows.
  kScaleSourceOffByOne,      // dispatch_async: a row points to the scales behind its own
  kSharedScalesNotTold,      // dispatch_async: the shared expert's rows point to none
  kLastScaleBandForgotten,   // dispatch_wait: rows behind the last whole band get no scales
  kStepCountedByFirstBlock,  // dispatch_wait: the first block to be done counts the step, not the last
  kScalesBehindSignal,  // dispatch_async: stores the scales of a block's last tokens when it has signalled

  // Of the direct protocol over a wire.
  kFarScalesNotPut,     // dispatch_async: a far row comes without its scales
  kFarLinksNotPut,      // dispatch_async: far rows come without their links
  kFarWeightsNotPut,    // dispatch_async: far rows come without their weights
  kKeptRowOverwritten,  // dispatch_async: all rows are kept at the address of the first, which puts may still
                        // read

  // Of the layout of rows, in both protocols.
  kMaskedGroupsPacked,  // dispatch: masked groups lie one behind the other
  kRowCountOfOneRank,   // dispatch_wait: counts the rows of rank 0 only

  // Of rows per rank.
  kRanksNotDistinct,     // choose_ranks: a token goes to a rank once for each of its choices there
  kChoicesOfRankZero,    // fetch_choices: reads what rank 0 has kept, whoever sent the row
  kChoicesOfOtherRanks,  // fetch_choices: takes experts of higher ranks for local ones
  kChoicesKeptOnce,      // choose_ranks, fetch_choices: all steps have the same copy of what ranks keep

  // Of rows that their receiver fills.
  kSiblingNotLinked,      // dispatch_async: tells of no sibling
  kLinksNotStored,        // dispatch_async: the links of an earlier step stay
  kLinkedToItself,        // dispatch_async: what comes next is the row itself, not its sibling
  kLinkOfNextRow,         // dispatch_async: stores a row's link beside the row behind it
  kLastSiblingNotFilled,  // fill_siblings: leaves the last one as it was
  kOwnRowsNotCarried,     // dispatch_async: carries own tokens once, too, which nobody fills
  kSkippedStepFilled,     // fill_siblings: takes no notice that the step was skipped
  kScalesOfOwnRow,        // dispatch_async: a sibling is to find scales at its own row, where none come

  // Of sums that are made by the owner.
  kRowWeightsNotStored,  // dispatch_async: the weights of an earlier step stay
  kSiblingAddedTwice,    // reduce_siblings: the first row counts twice
  kSiblingLeftOut,       // reduce_siblings: the last row does not count
  kSumsOfOwnRankOnly,    // reduce_siblings: leaves the rows of other ranks as they are
  kSiblingsAddedAgain,   // combine_wait: adds the siblings to their sum
  kSumWeightedAgain,     // combine_wait: weights what has been weighted
  kOwnSiblingsLeftOut,   // combine_wait: takes the first row on its own rank for a sum

  // Of tokens that come encoded, in both protocols.
  kInputScalesOfFirstToken,  // dispatch_async: every token is sent with the scales of the first

  // Of placements.
  kNextSeat,               // dispatch, combine: rows go to the seat behind that of the table
  kCombineIgnoresSeats,    // combine_wait, direct: pulls from the owners that an even division would have
  kExpertCountsOfOneStep,  // dispatch_async: the counts of a step replace those of the steps before

  kOneBuffer,  // all_reduce: every step shows its values where the one before did
};

// Whether the kernels of this shape are that mutant.
template <typename Fixed>
SWITCHYARD_HD constexpr bool is_mutant(LogicMutant mutant) {
  if constexpr (requires { Fixed::kMutant; })
    return Fixed::kMutant == mutant;
  else
    return false;
}

// `right`, unless the kernels of this shape are that mutant: then `wrong`. Either is a value, or a function
// without arguments, which is called only if it is chosen.
SWITCHYARD_NO_EXEC_CHECK
template <typename Fixed, LogicMutant kMutant, typename Right, typename Wrong>
SWITCHYARD_HD constexpr auto mutate(const Right& right, const Wrong& wrong) {
  if constexpr (std::invocable<const Right&> && !is_mutant<Fixed>(kMutant))
    return right();
  else if constexpr (std::invocable<const Right&>)
    return static_cast<decltype(right())>(wrong());
  else if constexpr (!is_mutant<Fixed>(kMutant))
    return right;
  else if constexpr (std::invocable<const Wrong&>)
    return static_cast<Right>(wrong());
  else
    return static_cast<Right>(wrong);
}

}  // namespace switchyard
